"""The scripts that a user's image finds on PATH instead of torchrun and mpirun, and what stands behind them."""

# A torchrun that a rank starts waits for this module, and pathlib would cost it 4 ms more.
# ruff: noqa: PTH100, PTH113, PTH118, PTH123, PTH208

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

SWITCH = "TRAINER_AGENT_WRAP"  # 0: the wrappers become the real programs at once
MARK = "TRAINER_AGENT_WRAPPED"  # set in all that we start, so that a wrapper below us does the same
ON, OFF = {"", "1", "true", "yes", "on"}, {"0", "false", "no", "off"}
# Three lines of sh that end in `exec "…/bin/trainer-agent" wrap torchrun "$@"`, under whatever name they lie.
WRAPPER = re.compile(rb"\A#!.*\bexec\b[^\n]*trainer-agent[\"']?[ \t]+wrap[ \t]", re.DOTALL)
LONGEST = 1024  # bytes of a wrapper that are looked at


def wanted(environ: Mapping[str, str]) -> bool:
    """
    Return whether a wrapper is to go through the agent: unless it is told not to, or is below the agent already.

    Raises:
        FatalError: the switch is neither on nor off.
    """
    from trainer_agent.errors import FatalError

    value = environ.get(SWITCH, "")
    if value.strip().lower() not in ON | OFF:
        raise FatalError(
            "wrap-invalid",
            f"{SWITCH}={value!r} is neither 1 nor 0 (true, false, yes, no, on, off)",
            hint=f"set {SWITCH}=0 to start torchrun and mpirun without the agent, or remove it",
        )
    return value.strip().lower() in ON and not environ.get(MARK)


def shortcut(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Become the real program where the agent is not wanted; return where it is, or where there is something to say."""
    off = environ.get(SWITCH, "").strip().lower() in OFF or (environ.get(MARK) and not environ.get(SWITCH))
    if off and words and (real := find_real(words[0], environ)):
        become([real, *words[1:]], environ)


def is_wrapper(path: str) -> bool:
    """Return whether a file is one of our scripts, wherever it was copied or linked to."""
    try:
        with open(path, "rb") as file:
            return bool(WRAPPER.match(file.read(LONGEST)))
    except OSError:
        return False


def places(program: str, path: str | None) -> Iterator[str]:
    """Yield the programs on PATH that a name may mean, in their order; an empty entry is the working directory."""
    for directory in (os.defpath if path is None else path).split(os.pathsep):
        file = os.path.abspath(os.path.join(directory, program))
        if os.path.isfile(file) and os.access(file, os.X_OK):
            yield file


def find_real(program: str, environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of the first program of this name on PATH that is no wrapper."""
    found = (os.path.abspath(program),) if os.sep in program else places(program, environ.get("PATH"))
    return next((file for file in found if not is_wrapper(file)), None)


def need_real(program: str, environ: Mapping[str, str]) -> str:
    """
    Return the absolute path of the program that a wrapper stands for.

    Raises:
        FatalError: there is none.
    """
    if found := find_real(program, environ):
        return found
    from trainer_agent.errors import FatalError

    raise FatalError(
        "wrap-program-missing",
        f"there is no {program} behind the wrapper: PATH={environ.get('PATH', os.defpath)!r} leads to none but ours",
        hint=f"install {program} in the image, or put its directory on PATH",
    )


def unwrapped(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for all that we start: marked, and with a PATH without the wrappers' own directory."""
    env = {**environ, MARK: "1"}
    if "PATH" in env:
        kept = [entry for entry in env["PATH"].split(os.pathsep) if not _is_ours(entry)]
        env["PATH"] = os.pathsep.join(kept) or env["PATH"]
    return env


def become(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """
    Become a program.

    Raises:
        FatalError: the kernel refuses.
    """
    restore_signals()
    try:
        os.execve(argv[0], list(argv), dict(environ))  # noqa: S606  # becoming the real program is the job
    except OSError as error:
        from trainer_agent.errors import FatalError

        hint = "look at the file: its mode, its first line, and what it is built for"
        raise FatalError("wrap-not-started", f"cannot start {argv[0]}: {error.strerror}", hint=hint) from error


def restore_signals() -> None:
    """Undo before an exec what Python ignores of itself, as exec hands that on."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)


def _is_ours(directory: str) -> bool:
    """Whether nothing but wrappers is in a directory."""
    try:
        names = os.listdir(directory or os.curdir)
    except OSError:
        return False
    return 0 < len(names) <= 8 and all(is_wrapper(os.path.join(directory, name)) for name in names)
