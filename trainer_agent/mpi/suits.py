"""Whether a job is one of MPI."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.launchers import AUTO
from trainer_agent.mpi import words
from trainer_agent.mpi.settings import INJECTED, ROLE, read_injected
from trainer_agent.shells import SHELLS, is_shell

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
# One of these on every rank would be too many.
STARTERS = (*PROGRAMS, "horovodrun", "deepspeed")
# What may stand before a command, with options and numbers of its own; in a script, shells and their words, too.
PREFIXES = {"env", "exec", "time", "nohup", "nice", "timeout", "stdbuf"}
IN_SCRIPTS = PREFIXES | SHELLS | {"if", "then", "else", "elif", "while", "until", "do", "!", "{", "eval"}
SHELL_VALUES = ("--rcfile", "--init-file")  # as all that end in o or O, they have a value
READ_BYTES = 1 << 16
NAMED = "TRAINER_AGENT_LAUNCH_HOSTFILE"


def is_mpi(script: Sequence[str], environ: Mapping[str, str], *, hostfile: str | None = None) -> bool:
    """
    Return whether this is an MPI job: somebody names a hostfile, or the user's own mpirun has one.

    Args:
        hostfile: that of an option; variables of the user and of controllers are looked up.
    """
    injected = read_injected(environ)
    if (hostfile or environ.get(NAMED) or injected.hostfile) and injected.role != "worker":
        return not starts_mpirun_itself(script)
    return is_mpirun(script) and (words.parse(script).has(*words.HOSTFILES) or Path(INJECTED).exists())


def starts_mpirun_itself(script: Sequence[str]) -> bool:
    """Return whether the user's command is a script, or another program, that starts mpirun or the like in its turn."""
    if is_mpirun(script):
        return False
    command = _command(script, PREFIXES)
    if command and _name(command[0]) in STARTERS:
        return True
    lines = re.split(r"[\n;&|()`]+", re.sub(r"\\\n|(^|\s)#.*", " ", _script_of(command)))
    inner = (_command(line.split(), IN_SCRIPTS) for line in lines)
    return any(each and _name(each[0]) in STARTERS for each in inner)


def is_mpirun(script: Sequence[str]) -> bool:
    """Return whether the user's command is mpirun."""
    return _name(script[0]) in PROGRAMS


def is_mpirun_of_env(script: Sequence[str]) -> bool:
    """Return whether `env` starts mpirun, which it finds on PATH as a shell does."""
    command = _command(script, PREFIXES)
    return _name(script[0]) == "env" and bool(command) and is_mpirun(command)


def refuse_hostfile(
    path: str, script: Sequence[str], *, runtime: str, launcher: str, environ: Mapping[str, str]
) -> None:
    """
    Refuse the hostfile of an option where nothing would read it: the command would run on this node alone.

    Raises:
        FatalError: unless the command's own mpirun finds it in the variable.
    """
    by_variable = environ.get(NAMED) == path
    if launcher != AUTO:
        why, hint = f"--launcher={launcher} reads none", "leave out --launcher, or the hostfile"
    elif starts_mpirun_itself(script):
        if by_variable:
            return
        why, hint = "the command starts mpirun itself", f"give it to that mpirun, or set {NAMED} instead"
    elif runtime == "mpi":
        why, hint = f"this is a worker of an MPI job ({ROLE})", "launch where the launcher is"
    else:
        why, hint = f"the runtime is {runtime}", "leave it out, or give --launcher mpirun"
    raise FatalError("hostfile-unused", f"{NAMED if by_variable else '--hostfile'}={path}, and {why}", hint=hint)


def _name(word: str) -> str:
    return word.strip("\"'").rpartition("/")[2]


def _command(line: Sequence[str], prefixes: Collection[str]) -> list[str]:
    """Return the words of a line from its program on: without `NAME=VALUE`, `env NAME=VALUE`, `timeout 1h` and such."""
    left = list(line)
    while left and (_name(left[0]) in prefixes or re.match(r"\w+=", left[0])):
        del left[0]
        while left and re.match(r"[-+\d]", left[0]):
            del left[0]
    return left


def _script_of(command: Sequence[str]) -> str:
    """Return the text that a shell is to run, nothing where the command is no shell."""
    if not command:
        return ""
    if not is_shell(command):
        text = _text_of(shutil.which(command[0]) or "")
        return text if re.match(rf"#!.*\b({'|'.join(SHELLS)})\b", text) else ""
    left, inline = list(command[1:]), False
    while left and left[0][:1] in ("-", "+"):
        option = left.pop(0)
        inline |= "c" in option and not option.startswith("--")
        if option in SHELL_VALUES or option[-1] in "oO":
            del left[:1]
    return (left[0] if inline else _text_of(left[0])) if left else ""


def _text_of(path: str) -> str:
    """Return the beginning of a file, nothing of one that cannot be read, or only once."""
    with suppress(OSError):
        if Path(path).is_file():
            with Path(path).open("rb") as file:
                return file.read(READ_BYTES).decode(errors="replace")
    return ""
