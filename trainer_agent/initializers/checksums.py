"""A user's own list of checksums, as sha256sum, sha1sum and md5sum write it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# Hexadecimal digits: algorithm.
BY_LENGTH = {64: "sha256", 40: "sha1", 32: "md5"}
PLAIN = re.compile(r"(?P<escaped>\\?)(?P<hex>[0-9A-Fa-f]+) [ *](?P<path>.+)", re.DOTALL)
TAGGED = re.compile(r"(?P<escaped>\\?)(?P<tag>SHA256|SHA1|MD5) \((?P<path>.+)\) = (?P<hex>[0-9A-Fa-f]+)", re.DOTALL)
ESCAPED = re.compile(r"\\(.)")
ESCAPES = {"\\": "\\", "n": "\n", "r": "\r"}
NAMED = 3


def read_checksums(file: Path) -> dict[str, str]:
    """
    Return {path: checksum} of a list; empty lines and comments are passed over.

    Raises:
        FatalError: it cannot be read, or a line is no such line or contradicts another.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise _invalid(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _invalid(f"{file} cannot be read: it is no UTF-8") from error
    found: dict[str, str] = {}
    # Names may hold what Python also takes for the end of a line; CR is the end of one that Windows wrote.
    for number, line in enumerate((line.removesuffix("\r") for line in text.split("\n")), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        path, checksum = _read_line(line) or ("", "")
        if not checksum:
            raise _invalid(f"{file}, line {number}: {line[:200]!r} is no line of sha256sum, sha1sum or md5sum")
        if found.setdefault(path, checksum) != checksum:
            raise _invalid(f"{file}, line {number}: {path!r} has another checksum in an earlier line")
    if not found:
        raise _invalid(f"{file} holds no checksum")
    return found


def unmatched(checksums: Mapping[str, str], paths: Iterable[str]) -> int:
    """
    Return how many of the source's files the list lacks.

    Raises:
        FatalError: the list names files that the source lacks.
    """
    there = set(paths)
    missing = sorted(checksums.keys() - there)
    if missing:
        first = ", ".join(map(repr, missing[:NAMED])) + (", …" if len(missing) > NAMED else "")
        hint = "write the list in the directory that the URI names, of the same version of the data"
        message = f"the list of checksums names {len(missing):,} files that the source lacks: {first}"
        raise FatalError("checksums-unmatched", message, hint=hint)
    return len(there - checksums.keys())


def _read_line(line: str) -> tuple[str, str] | None:
    match = TAGGED.fullmatch(line) or PLAIN.fullmatch(line)
    if not match or "\0" in line:  # of `sha256sum --zero`, whose names are not escaped
        return None
    algorithm = BY_LENGTH.get(len(match["hex"]))
    tag = match.groupdict().get("tag")
    if algorithm is None or (tag and tag.lower() != algorithm):
        return None
    path = match["path"]
    if match["escaped"]:
        path = ESCAPED.sub(lambda m: ESCAPES.get(m[1], m[0]), path)
    return path.removeprefix("./"), f"{algorithm}:{match['hex'].lower()}"


def _invalid(message: str) -> FatalError:
    hint = "write it with `sha256sum`, in the directory that the URI names"
    return FatalError("checksums-invalid", message, hint=hint)
