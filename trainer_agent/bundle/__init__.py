"""
The agent in a directory of its own, which runs in any image: "the bundle", and what differs inside of it.

DIR/bin/trainer-agent, DIR/wrappers/… are small scripts that name the version in use, DIR/lib-VERSION-DIGEST, which is
never changed: interpreter, standard library, distributions, shared libraries, the dynamic loader, certificates.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MARK = "bundle.json"
AUTHORITIES = "certificates.pem"
# Where distributions keep them: Debian and Alpine, Fedora and RHEL (twice), openSUSE, Alpine and RHEL 7.
STORES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def home() -> Path | None:
    """Return DIR/lib-… when this program runs from a bundle."""
    path = Path(sys.prefix)
    return path if (path / MARK).is_file() else None


def agent_python(otherwise: str) -> str:
    """Return a bundle's own interpreter, which has this program wherever the same bundle is; else `otherwise`."""
    return sys.executable if home() else otherwise


def training_python(environ: Mapping[str, str]) -> str:
    """
    Return the interpreter of the training environment, as long as nobody names another.

    It is the one that runs this program; in a bundle, which comes without torch, the image's `python` or `python3`.
    """
    inside = home()
    if inside is None:
        return sys.executable
    directories = [d for d in environ.get("PATH", os.defpath).split(os.pathsep) if d]
    found = (Path(directory, name) for name in ("python", "python3") for directory in directories)
    return next((str(p.absolute()) for p in found if _runs(p) and not _is_ours(p, inside)), sys.executable)


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_ours(path: Path, inside: Path) -> bool:
    return path.resolve().is_relative_to(inside.parent)


def stored_authorities(stores: tuple[str, ...] = STORES) -> Path | None:
    """Return the file of certificates that this image trusts, None when there is none where such files lie."""
    return next((Path(path) for path in stores if _has_bytes(Path(path))), None)


def own_authorities() -> Path | None:
    """
    Return the certificates to trust in a bundle where OpenSSL finds none: the image's in another place, or ours.

    OpenSSL looks where the image has them that the bundle was made in.
    """
    inside = home()
    if inside is None or _openssl_finds_any():
        return None
    brought = inside / AUTHORITIES
    return stored_authorities() or (brought if _has_bytes(brought) else None)


def _openssl_finds_any() -> bool:
    import ssl

    default = ssl.get_default_verify_paths()
    hashed = Path(default.capath).glob("*.0") if default.capath else ()
    return bool(default.cafile and _has_bytes(Path(default.cafile))) or any(hashed)


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0 and os.access(path, os.R_OK)
    except OSError:
        return False
