"""What goes into a bundle: each file's place there, and where it is here."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
import sysconfig
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_agent import __version__
from trainer_agent.bundle import AUTHORITIES, MARK, home, stored_authorities
from trainer_agent.bundle.libraries import check_glibc, loader_of, needed_by
from trainer_agent.bundle.scripts import inner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

OWN = "trainer-agent"
CHECKS = "trainer_agent.checks"
# The training environment has its own; ours would be gigabytes.
LEFT_OUT = frozenset({"torch"})
PLATLIB = f"{sys.platlibdir}/python{sys.version_info.major}.{sys.version_info.minor}"
# Of the standard library, what only developers and desktops use, and the distributions beside it.
STDLIB_LEFT_OUT = (
    *("site-packages", "dist-packages", "sitecustomize.py", "usercustomize.py", "EXTERNALLY-MANAGED"),
    *("test", "tests", "idlelib", "tkinter", "turtle.py", "turtledemo", "ensurepip", "lib2to3", "config-*"),
    *("pydoc_data", "_tkinter.*.so", "_test*.so", "_ctypes_test.*.so", "xx*.so", "readline.*.so", "_curses*.so"),
    *("_dbm.*.so", "_gdbm.*.so", "nis.*.so"),
)
SKIPPED = ("__pycache__", "*.pyc", "*.pyo", "*.pth")


@dataclass(frozen=True)
class Contents:
    """
    What a bundle is made of.

    Args:
        name: of its directory: it says the version, and differs when any file does.
        files: place in the bundle -> file here.
        facts: what its mark says, such as `interpreter` and `loader`, their places.
        scripts: places and texts of what is made for it.
    """

    name: str
    files: Mapping[str, Path]
    facts: Mapping[str, Any]
    scripts: Mapping[str, str]


def find_contents() -> Contents:
    """
    Return what the running program is made of: a bundle as it is, or all that is gathered from this system.

    Raises:
        FatalError: this Python or this system cannot be copied.
    """
    inside = home()
    if not inside:
        return _gathered()
    facts = json.loads((inside / MARK).read_text())
    files = (path for path in inside.rglob("*") if path.is_file() and path.name != MARK)
    return Contents(facts["name"], {str(path.relative_to(inside)): path for path in files}, facts, {})


def _gathered() -> Contents:
    check_glibc()
    real = Path("/proc/self/exe").readlink()
    loader = loader_of(real)
    files = {f"{PLATLIB}/{place}": path for place, path in (*_standard_library(), *_distributions())}
    inside = set(files.values())
    modules = [path for place, path in files.items() if re.search(r"\.so(\.[0-9]+)*$", place)]
    libraries = {name: path for name, path in needed_by([real, *modules], loader).items() if path not in inside}
    files |= {f"lib/{name}": path for name, path in libraries.items()}
    # The kernel and `ps` call the program as the loader is called.
    places = {"interpreter": f"bin/{real.name}", "loader": "bin/trainer-agent"}
    files |= {places["interpreter"]: real, places["loader"]: loader.resolve()}
    if authorities := _authorities():
        files[AUTHORITIES] = authorities
    name = f"lib-{__version__}-{_digest(files)}"
    facts = {"name": name, "version": __version__, "python": platform.python_version(), **places}
    return Contents(name, files, facts, inner(**places))


def _digest(files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for place, path in sorted(files.items()):
        facts = path.stat()
        digest.update(f"{place}\0{facts.st_size}\0{int(facts.st_mtime)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:12]


def _authorities() -> Path | None:
    import ssl

    return stored_authorities() or (Path(file) if (file := ssl.get_default_verify_paths().cafile) else None)


def _standard_library() -> Iterator[tuple[str, Path]]:
    yield from _walk(Path(sysconfig.get_path("stdlib")), left_out=STDLIB_LEFT_OUT)
    dynload = Path(sysconfig.get_config_var("DESTSHARED"))
    yield from ((f"lib-dynload/{place}", path) for place, path in _walk(dynload, left_out=STDLIB_LEFT_OUT))


def _walk(root: Path, *, left_out: Iterable[str] = ()) -> Iterator[tuple[str, Path]]:
    patterns = (*SKIPPED, *left_out)
    for directory, directories, names in os.walk(root):
        directories[:] = [d for d in directories if not _matches(d, patterns)]
        for name in names:
            path = Path(directory, name)
            if not _matches(name, patterns) and path.is_file():
                yield str(path.relative_to(root)), path


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _distributions() -> Iterator[tuple[str, Path]]:
    for found in distributions().values():
        yield from _files(found)


def distributions() -> dict[str, importlib.metadata.Distribution]:
    """Return ourselves, whoever else brings checks, and what they need, as far as it is installed; never torch."""
    checks = (entry.dist for entry in importlib.metadata.entry_points(group=CHECKS))
    left = [OWN, *(dist.name for dist in checks if dist)]
    found: dict[str, importlib.metadata.Distribution] = {}
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found or name in LEFT_OUT or not (dist := _distribution(name)):
            continue
        found[name] = dist
        # Our own extras count when they are there; those of others are for their developers and users.
        wanted = [r for r in dist.requires or () if name == OWN or not re.search(r";.*\bextra\s*==", r)]
        left += [re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in wanted]
    return found


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    """Return an installed distribution; a checkout in the current directory is none as long as there is another."""
    found = list(importlib.metadata.distributions(name=name))
    return next((dist for dist in found if dist.read_text("RECORD")), found[0] if found else None)


def _files(dist: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files of a distribution: by its record, or those of its packages where it has none, or an editable."""
    metadata = Path(str(dist._path))  # type: ignore[attr-defined]  # noqa: SLF001  # there is no public name
    yield from ((f"{metadata.name}/{place}", path) for place, path in _walk(metadata))
    if dist.read_text("RECORD") and '"editable": true' not in (dist.read_text("direct_url.json") or ""):
        for file in dist.files or ():
            path = Path(str(dist.locate_file(file)))
            if ".." not in file.parts and not any(_matches(p, SKIPPED) for p in file.parts) and path.is_file():
                yield str(file), path
        return
    for name in _top_level(dist):
        yield from _package(name)


def _top_level(dist: importlib.metadata.Distribution) -> set[str]:
    listed = (dist.read_text("top_level.txt") or "").split()
    return set(listed) | {entry.module.partition(".")[0] for entry in dist.entry_points}


def _package(name: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(name)
    if spec and spec.submodule_search_locations:
        for root in spec.submodule_search_locations:
            yield from ((f"{name}/{place}", path) for place, path in _walk(Path(root)))
    elif spec and spec.origin:
        yield Path(spec.origin).name, Path(spec.origin)
