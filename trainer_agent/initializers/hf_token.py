"""The Hub's token: of a variable, or of the file that `hf auth login` writes, as huggingface_hub finds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Kubeflow's name first; the last is huggingface_hub's old one, which it still reads.
TOKENS = ("ACCESS_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def find(environ: Mapping[str, str]) -> tuple[str, str]:
    """
    Return the variable or the file that holds the token, and the token; both empty without one.

    Raises:
        FatalError: it is none, or the file that HF_TOKEN_PATH names cannot be read.
    """
    name = next((n for n in TOKENS if environ.get(n, "").strip()), "") or _file(environ)
    token = _read(name, environ) if name.startswith("/") else environ.get(name, "").strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        hint = "give the token alone, without spaces and line breaks in it"
        raise FatalError("hub-token-invalid", f"{name} holds what no token has", hint=hint)
    return (name, token) if token else ("", "")


def _file(environ: Mapping[str, str]) -> str:
    """Return where the file is, by the rules of huggingface_hub's constants.py; nothing for who has no home."""
    cache = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    path = environ.get("HF_TOKEN_PATH") or f"{cache}/token"
    if path.startswith("~/"):
        home = environ.get("HOME")
        return f"{home}{path[1:]}" if home else ""
    return str(Path(path).absolute())


def _read(path: str, environ: Mapping[str, str]) -> str:
    """Return what the file holds; nothing where there is none, or somebody else's."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        if isinstance(error, FileNotFoundError) or not environ.get("HF_TOKEN_PATH"):
            return ""
        # Without `from`: what cannot be read may be a token.
        hint = "mount it so that this user may read it, or put the token into ACCESS_TOKEN"
        raise FatalError("hub-token-invalid", f"HF_TOKEN_PATH={path} cannot be read", hint=hint) from None
