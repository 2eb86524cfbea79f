"""Bytecode that is valid wherever and whenever its source was copied, as a read-only image cannot make its own."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path

HEAD_BYTES = 16
# PEP 552: the head names the source's hash, and nobody compares it.
UNCHECKED = (1).to_bytes(4, "little")


def compiled_of(source: Path, text: bytes) -> bytes | None:
    """Return the bytecode of a source, None for what does not compile; taken from beside it where that is fresh."""
    head = importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(text)
    body = _kept(source, len(text)) or _compile(source, text)
    return head + body if body else None


def _kept(source: Path, size: int) -> bytes:
    """Return what Python has compiled before, if it is of this very file."""
    with suppress(OSError):
        data = Path(importlib.util.cache_from_source(str(source))).read_bytes()
        mtime = int(source.stat().st_mtime) & 0xFFFFFFFF
        stamp = bytes(4) + mtime.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")
        if data[:HEAD_BYTES] == importlib.util.MAGIC_NUMBER + stamp:
            return data[HEAD_BYTES:]
    return b""


def _compile(source: Path, text: bytes) -> bytes:
    import marshal
    import warnings

    with warnings.catch_warnings(), suppress(SyntaxError, ValueError):
        warnings.simplefilter("ignore")  # invalid escapes in other people's modules
        return marshal.dumps(compile(text, str(source), "exec", dont_inherit=True, optimize=0))
    return b""
