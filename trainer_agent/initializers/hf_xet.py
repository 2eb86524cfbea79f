"""Files that only Xet has: by hf_xet, in ranges, with little memory."""

from __future__ import annotations

import os
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from trainer_agent.bundle import own_authorities
from trainer_agent.errors import FatalError
from trainer_agent.initializers import STALL_S, TransientError
from trainer_agent.initializers.wire import BUFFER_BYTES, CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_agent.initializers.hf_api import HubApi

# hf_xet fetches in parallel by itself. With two ranges of 64 MiB at once and these buffers, a process that read 1 GiB
# and did nothing else took 230 MB (measured); eight ranges took 600 MB and were no faster, its own defaults allow 6 GB.
RANGES = 2
SETTINGS = {
    "telemetry.enabled": False,
    # Attempts are counted in one place, which is not there.
    "client.retry_max_attempts": 1,
    "client.connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
    "client.read_timeout": timedelta(seconds=STALL_S),
    "reconstruction.download_buffer_size": 32_000_000,
    "reconstruction.download_buffer_perfile_size": 32_000_000,
    "reconstruction.download_buffer_limit": 64_000_000,
}
# Its storage is read by signed URLs: whoever has their query can read, too.
QUERY = re.compile(r"\?\S+")
SHORT_HINT = "start it again; its storage ends like this when it refuses the Hub's token, or lacks the file"
UNREACHED_HINT = "check whether this pod may reach Xet's storage: *.xethub.hf.co, also by its HTTPS_PROXY and NO_PROXY"


class XetReader:
    """Reads ranges of files by their Xet hash, at one commit."""

    def __init__(self, api: HubApi, commit: str) -> None:
        self.api = api
        self.commit = commit
        self._free = threading.BoundedSemaphore(RANGES)
        self._lock = threading.Lock()
        self._opened: Any = None

    def read(self, xet_hash: str, size: int, start: int, stop: int) -> Iterator[memoryview]:
        """
        Yield the bytes `[start, stop)` of a file.

        Raises:
            FatalError: hf_xet is not installed, or the Hub gives no token for its storage.
            TransientError: the storage does not answer, or not with these bytes.
        """
        with self._free:
            at = start
            for block in self._blocks(xet_hash, size, start, stop):
                at += len(block)
                # Copies: a view that somebody still holds would keep the whole block, of up to 64 MB.
                yield from (memoryview(block[i : i + BUFFER_BYTES]) for i in range(0, len(block), BUFFER_BYTES))
                del block
            if at != stop:
                self._opened = None
                message = f"Xet sent {at - start:,} bytes of {stop - start:,}"
                raise TransientError("xet-failed", message, hint=SHORT_HINT)

    def _blocks(self, xet_hash: str, size: int, start: int, stop: int) -> Iterator[bytes]:
        module = _hf_xet()
        try:
            yield from self._group(module).download_stream(module.XetFileInfo(xet_hash, size), start, stop)
        except (OSError, RuntimeError) as error:
            self._opened = None  # the next attempt begins with a new token
            said = QUERY.sub("?...", str(error))
            raise TransientError("xet-failed", f"cannot read from Xet's storage: {said}", hint=UNREACHED_HINT) from None

    def _group(self, module: Any) -> Any:
        with self._lock:
            if self._opened is None:
                url, token = self.api.xet_token(self.commit)
                bring_authorities()
                config = module.XetConfig().with_config(SETTINGS)
                self._opened = module.XetSession(config).new_download_stream_group(
                    endpoint=token["casUrl"],
                    token=token["accessToken"],
                    token_expiry_unix_secs=token["exp"],
                    token_refresh_url=url,
                    token_refresh_headers=self.api.headers_for(url),
                )
            return self._opened


def bring_authorities() -> None:
    """In a bundle, tell hf_xet of certificates where it would find none; children are not told."""
    if path := own_authorities():
        os.putenv("SSL_CERT_FILE", str(path))  # it reads the C library's variables; os.environ stays as it is


def _keep_it_quiet() -> None:
    """
    Let hf_xet log only where somebody wants it.

    By itself it writes files below HF_HOME, and where these cannot be, as in a pod with a read-only root, errors among
    our lines.
    """
    if not os.environ.keys() & {"HF_XET_LOG_DEST", "RUST_LOG"}:
        os.putenv("HF_XET_LOG_DEST", os.devnull)  # as above


def _hf_xet() -> Any:
    _keep_it_quiet()
    try:
        import hf_xet  # type: ignore[import-untyped]  # ships no types
    except ImportError as error:
        hint = "install hf-xet in this image"
        raise FatalError(
            "xet-missing", "the Hub has a file in Xet only, and hf_xet is not installed", hint=hint
        ) from error
    return hf_xet
