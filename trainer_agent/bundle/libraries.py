"""The dynamic loader of the running interpreter, and what it says that a program needs."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Iterable

PT_INTERP = 3
# `--argv0` came with 2.33, and 2.34 took the plug-ins for names in files and DNS into libc itself.
OLDEST_GLIBC = (2, 34)
LISTED = re.compile(r"^\s*(\S+) => (/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)
# Loaded when they are used, so that no list has them: libgcc_s by pthread_exit(), NSS by names of users and hosts, and
# all of glibc by the image's libraries, such as NVIDIA's, which must not bring another glibc's beside ours.
ON_DEMAND = (
    *("libgcc_s.so.1", "libnss_compat.so.2", "libnss_dns.so.2", "libnss_files.so.2"),
    *("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2", "libanl.so.1"),
)


def check_glibc() -> None:
    """
    Make sure that this system's glibc can start a bundle.

    Raises:
        FatalError: it is too old, or none.
    """
    try:
        found = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        found = ""
    version = tuple(int(part) for part in re.findall(r"[0-9]+", found)[:2])
    if version < OLDEST_GLIBC:
        hint = "run it from an image of Debian 12, Ubuntu 22.04, RHEL 9 or newer; where the copy runs does not matter"
        message = f"the system that is copied has {found or 'no glibc'}, and glibc 2.34 or newer is wanted"
        raise FatalError("install-glibc-old", message, hint=hint)


def loader_of(program: Path) -> Path:
    """
    Return the dynamic loader that a program names.

    Raises:
        FatalError: it is no 64-bit program that has one.
    """
    with program.open("rb") as file, suppress(struct.error):
        head = file.read(64)
        if head[:5] == b"\x7fELF\x02":
            (start,), (size, count) = struct.unpack_from("=Q", head, 32), struct.unpack_from("=HH", head, 54)
            for number in range(count):
                file.seek(start + number * size)
                kind, offset, length = struct.unpack("=I4xQ16xQ", file.read(40))
                if kind == PT_INTERP:
                    file.seek(offset)
                    return Path(os.fsdecode(file.read(length).rstrip(b"\0")))
    hint = "install trainer-agent with a Python of the distribution or of python.org"
    raise FatalError("install-static-python", f"{program} is no 64-bit program with a dynamic loader", hint=hint)


def needed_by(files: Iterable[Path], loader: Path) -> dict[str, Path]:
    """Return the shared libraries that programs and extension modules need, by the name that is asked for."""
    found: dict[str, Path] = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for listed in pool.map(lambda file: _list(file, loader), files):
            found |= listed | found
    return {name: path for name in ON_DEMAND if (path := _load(name))} | found


def _list(file: Path, loader: Path) -> dict[str, Path]:
    """Ask the loader; what cannot be loaded here needs nothing there."""
    done = subprocess.run([loader, "--list", file], capture_output=True, check=False, timeout=60)
    return {name: Path(path) for name, path in LISTED.findall(os.fsdecode(done.stdout))}


def _load(name: str) -> Path | None:
    with suppress(OSError):
        ctypes.CDLL(name)
        for line in Path("/proc/self/maps").read_text().splitlines():
            if line.endswith(f"/{name}"):
                return Path(line.split(maxsplit=5)[5])
    return None
