"""s3://: objects of a bucket, by obstore."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import AgentError, FatalError, RetryError
from trainer_agent.initializers import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from obstore.store import ClientConfig, RetryConfig

# Measured best for writing to ext4: larger pieces fall out of the second-level cache.
CHUNK_BYTES = 256 * 1024
RETRY: RetryConfig = {"max_retries": 6, "retry_timeout": timedelta(minutes=3)}
CLIENT: ClientConfig = {"connect_timeout": "10s", "timeout": "30 minutes", "read_timeout": "30s"}


class S3Source:
    """The objects below a prefix, taken as a path: `s3://b/dir` is `dir/…` or the object `dir`, never `dir2/…`."""

    def __init__(self, rest: str, environ: Mapping[str, str]) -> None:
        self.bucket, _, prefix = rest.partition("/")
        self.prefix = prefix.strip("/")
        self.environ = environ
        if environ.get("ROLE_ARN", "").strip():
            raise FatalError(
                "role-unsupported",
                "ROLE_ARN is set, and assuming a role is not supported yet",
                hint="give ACCESS_KEY_ID and SECRET_ACCESS_KEY instead",
            )

    def entries(self) -> list[Entry]:
        """List the objects; markers of empty directories are left out."""
        with self._translated():
            below = [(str(m["path"]), int(m["size"])) for m in self._list()]
        # An empty object may be the marker of a directory: obstore drops the slash that ends its key.
        entries = [Entry(self._relative(key), size, key) for key, size in below if size or self._size(key) is not None]
        return entries or self._single()

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield the bytes of one object."""
        with self._translated():
            for chunk in self._store.get(entry.key).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def _list(self) -> list[Any]:
        import obstore.exceptions as oe

        try:
            return [meta for page in self._store.list(prefix=self.prefix or None) for meta in page]
        except oe.GenericError:
            # obstore hides the status of a failed listing in a text; asking for an object tells it by type.
            self._store.head(self.prefix or "any")
            raise

    def _size(self, key: str) -> int | None:
        """Return an object's size, None when there is none by exactly this name."""
        with self._translated():
            try:
                return int(self._store.head(key)["size"])
            except FileNotFoundError:
                return None

    def _single(self) -> list[Entry]:
        size = self._size(self.prefix) if self.prefix else None
        return [] if size is None else [Entry(self.prefix.rpartition("/")[2], size, self.prefix)]

    def _relative(self, key: str) -> str:
        return key[len(self.prefix) :].lstrip("/") if self.prefix else key

    @cached_property
    def _store(self) -> Any:
        from obstore.store import S3Store

        def value(*names: str) -> str | None:
            return next((v for n in names if (v := self.environ.get(n, "").strip())), None)

        endpoint = value("ENDPOINT", "AWS_ENDPOINT_URL")
        settings: dict[str, Any] = {
            "endpoint": endpoint,
            "region": value("REGION", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1",
            "access_key_id": value("ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"),
            "secret_access_key": value("SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"),
            "session_token": value("SESSION_TOKEN", "AWS_SESSION_TOKEN"),
        }
        given = {k: v for k, v in settings.items() if v}
        http: ClientConfig = {**CLIENT, "allow_http": (endpoint or "").startswith("http://")}
        return S3Store(self.bucket, client_options=http, retry_config=RETRY, **given)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn obstore's exceptions into ours, by type."""
        import obstore.exceptions as oe

        where = f"s3://{self.bucket}/{self.prefix}"
        try:
            yield
        except (FileNotFoundError, oe.NotFoundError) as error:
            hint = "check the bucket in STORAGE_URI, ENDPOINT and REGION"
            raise FatalError("source-not-found", f"{where} does not exist", hint=hint) from error
        except (oe.PermissionDeniedError, oe.UnauthenticatedError, PermissionError) as error:
            hint = "check ACCESS_KEY_ID and SECRET_ACCESS_KEY, and that they may list and read this bucket"
            raise FatalError("source-refused", f"the server refuses access to {where}", hint=hint) from error
        except oe.BaseError as error:
            raise self._transient(where, error) from error

    def _transient(self, where: str, error: Exception) -> AgentError:
        # The first line is enough; the rest of obstore's text repeats the request with its headers.
        first = str(error).strip().partition("\n")[0]
        return RetryError(
            "source-unavailable",
            f"{where} cannot be read: {first}",
            hint="check ENDPOINT, and that this pod may reach it (NetworkPolicy, proxy)",
        )
