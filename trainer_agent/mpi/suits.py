"""Whether a job is one of MPI."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.launchers import AUTO
from trainer_agent.launchers.torchrun_flags import own_torchrun, told
from trainer_agent.log import get_logger
from trainer_agent.mpi import words
from trainer_agent.mpi.settings import INJECTED, ROLE, read_injected
from trainer_agent.shells import SHELLS, is_shell
from trainer_agent.topology import PET_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
OTHERS = ("horovodrun", "deepspeed")
# One of these on every rank would be too many.
STARTERS = (*PROGRAMS, *OTHERS)
# In a script these start nothing; it may only want to know what there is.
QUESTIONS = (*words.ASKING, "--check-build")
# What may stand before a command, with options of its own: programs, and words of shells.
PREFIXES = {
    *("env", "nohup", "nice", "ionice", "chrt", "timeout", "stdbuf", "unbuffer", "numactl", "taskset", "strace"),
    *("sudo", "gosu", "su", "su-exec", "runuser", "setpriv", "flock", "srun", "nsys", "tini", "dumb-init"),
    *("exec", "eval", "time", "if", "then", "else", "elif", "while", "until", "do", "!", "{", "function"),
}
# A user, a file, `profile`, the name of a function: then comes the command.
WITH_A_WORD = {"gosu", "su", "su-exec", "flock", "nsys", "function"}
ENVIRONMENTS = {"conda", "mamba", "micromamba", "pixi", "pipenv", "poetry", "uv"}  # each has a `run` for commands
WITH_A_TEXT = {"su", "runuser", "flock", "eval"}  # a text of commands may be one word of theirs
SHELL_VALUES = ("--rcfile", "--init-file")  # as all that end in o or O, they have a value
QUOTED = r"""'(?:\\\n|[^'\n])*'|"(?:\\(?s:.)|[^"\\\n])*"|\\(?s:.)"""
# Comments and redirections; what is quoted is none, and is the group.
NOISE = re.compile(rf"({QUOTED})|(?<![^\s;&|(])#.*|\d?&?[<>]+[&|]?[ \t]*(?:{QUOTED}|[^\s;&|()<>'\"])*")
SUBSTITUTED = re.compile(r"\$\(([^()]*)\)|`([^`]*)`")
# What is set between these, or behind `&&` and `||`, may not be set.
OPENING = {"if": "fi", "case": "esac", "for": "done", "select": "done", "while": "done", "until": "done", "{": "}"}
AND_OR = ("&&", "||")
# A value that is another variable's, or the arguments.
ANOTHERS = re.compile(r"\$({)?(\w+|[*@])(?(1)(:?-)?})")
DEEPEST = 8  # nobody writes more substitutions into each other, and each takes a look at the whole text
NAME = re.compile(r"\$({)?(\w+)(?(1)})")
# ${MPIRUN:-mpirun}, $(which mpirun 2>/dev/null), and the latter in backticks.
WHICH = r"(?:which|command -v) +([\w./-]+)(?: *2> */dev/null)? *"
ASKED = re.compile(rf"\${{\w+:?[-=]([^{{}}]*)}}|\$\({WHICH}\)|`{WHICH}`")
COMMAND = re.compile(rf"(?:{QUOTED}|[^\n;&|()])+")
# OMP_NUM_THREADS=2 or $SUDO, before a command.
VARIABLE = re.compile(r"\w+(\[[^]]*])?\+?=|\$(\w+|{[^}]*})$")
READ_BYTES = 1 << 16
NODES = {"PET_NNODES", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"}  # --standalone says the first
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
    command = _command(script)
    if _is_starter(command):
        return True
    text = _inline(command)
    commands = _commands(text or _file_of(command))
    if text:
        commands += [line for found in _files_of(commands) for line in _commands(found)]
    return any(map(_starts, commands))


def finds_mpirun(script: Sequence[str]) -> bool:
    """Return whether the user's command starts the mpirun that is first on PATH, which may be ours."""
    return starts_mpirun_itself(script) and _name(_command(script)[0]) not in OTHERS


def is_mpirun(script: Sequence[str]) -> bool:
    """Return whether the user's command is mpirun."""
    return _name(script[0]) in PROGRAMS


def refuse_hostfile(
    path: str, script: Sequence[str], *, runtime: str, launcher: str, environ: Mapping[str, str]
) -> None:
    """
    Refuse the hostfile of an option where nothing would read it: the command would run on this node alone.

    Raises:
        FatalError: unless it comes by variable, and the command's own mpirun reads that, or a torchrun needs none.
    """
    by_variable = environ.get(NAMED) == path
    if by_variable and _is_torchrun_by_flags(script, environ):
        message = f"{NAMED}={path} is for mpirun: the command is a torchrun whose own flags say who the nodes are"
        get_logger().warning(message, code="hostfile-unused", hint="nothing to do, if only mpirun is to use them")
        return
    if launcher != AUTO:
        why, hint = f"--launcher={launcher} reads none", "leave out --launcher, or the hostfile"
    elif starts_mpirun_itself(script):
        if by_variable:
            return
        why, hint = "the command starts mpirun itself", f"give it to that mpirun, or set {NAMED} instead"
    elif runtime == "mpi":
        why, hint = f"this is a worker of an MPI job ({ROLE})", "launch where the launcher is"
    elif by_variable and own_torchrun(script) and not PET_NAMES & environ.keys():
        why = "no flag of the torchrun says who the nodes are"
        hint = "say it: `torchrun --standalone` or `--nnodes 1` for this node alone, `--rdzv-endpoint` for several"
    else:
        why, hint = f"the runtime is {runtime}", "leave it out, or give --launcher mpirun"
    raise FatalError("hostfile-unused", f"{NAMED if by_variable else '--hostfile'}={path}, and {why}", hint=hint)


def _is_torchrun_by_flags(script: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether flags of the user's own torchrun say who the nodes are, and no controller says anything else of them."""
    own = own_torchrun(script)
    return bool(own and NODES & own[1].variables.keys()) and PET_NAMES & environ.keys() <= told(script, {}).keys()


def _starts(line: Sequence[str]) -> bool:
    """Return whether a command of a script starts the ranks, or a text that it hands on to a shell does."""
    command = _command(line)
    if _is_starter(command):
        return not (len(command) == 2 and command[1] in QUESTIONS)
    return any(map(_starts, _commands(_inline(command))))


def _is_starter(command: Sequence[str]) -> bool:
    """Return whether the first word is a program that starts the ranks; a text may have its name at the end."""
    return bool(command) and " " not in command[0] and _name(command[0]) in STARTERS


def _name(word: str) -> str:
    return word.strip("\"'").rpartition("/")[2]


def _command(line: Sequence[str]) -> list[str]:
    """Return the words of a line from its program on: without `NAME=VALUE`, `sudo -u USER`, `timeout 1h` and such."""
    left, prefix = list(line), ""
    while left:
        text = prefix in WITH_A_TEXT and " " in left[0]
        if VARIABLE.match(left[0]) and not text:
            del left[0]
        elif _name(left[0]) in PREFIXES:
            prefix = _name(left.pop(0))
            _drop_options(left, value=prefix in WITH_A_WORD)
        elif _name(left[0]) in ENVIRONMENTS and left[1:2] == ["run"]:
            del left[:2]
            _drop_options(left, value=False)
        else:
            break
    return left


def _drop_options(left: list[str], *, value: bool) -> None:
    """Remove what stands between a prefix and its command; `value` says whether a word of any kind may come next."""
    while left and not _is_program(left[0]):
        option, number = left[0][:1] in ("-", "+"), left[0][:1].isdigit()
        if not (option or number or value):
            break
        value = option or (value and number)  # the word behind an option may be its value
        del left[0]


def _is_program(word: str) -> bool:
    """Whether a word behind a prefix is the command, or a text of commands, and no value of one of its options."""
    if _name(word) in PREFIXES or _name(word) in (*STARTERS, *SHELLS) or shutil.which(word):
        return True
    return " " in word and any(map(_starts, _commands(word)))


def _commands(text: str) -> list[list[str]]:
    """Return the words of each command in a shell's text, with `mpirun` for the variables that stand for it."""
    starting: dict[str, bool] = {}
    opened: list[tuple[str, bool]] = []
    lines, commands = _lines(text), []
    for line, perhaps in lines:
        _open_and_close(line, opened, perhaps=perhaps)
        commands.append([_named(word, starting) for word in line])
        _assign(line, starting, perhaps=perhaps or any(doubtful for _, doubtful in opened))
    # A function may use what is set only after it.
    again = ([_named(word, starting) for word in line] for line, _ in lines)
    return commands + [late for late, early in zip(again, commands, strict=True) if late != early]


def _open_and_close(line: Sequence[str], opened: list[tuple[str, bool]], *, perhaps: bool) -> None:
    """Keep the words that will close what is open, each with whether what is inside may not be run."""
    for word in line:
        if word in OPENING:
            opened.append((OPENING[word], perhaps or word != "{"))
        elif opened and word == opened[-1][0]:
            opened.pop()
        if word not in PREFIXES:
            break


def _assign(line: Sequence[str], starting: dict[str, bool], *, perhaps: bool) -> None:
    """Take down which variables stand for what starts the ranks; one that is set `perhaps` by all of its values."""
    for name, _, value in (word.partition("=") for word in line if "=" in word):
        if not value:
            continue
        if other := ANOTHERS.fullmatch(value):
            starts = starting.get(other[2])
        else:
            starts = any(_starts(command) for command, _ in _lines(_named(value, starting)))
        if starts is not None:
            starting[name] = starts and (not perhaps or starting.get(name, True))
        elif not perhaps:
            starting.pop(name, None)


def _lines(text: str) -> list[tuple[list[str], bool]]:
    """
    Return the words of each command in a shell's text, and in what it substitutes, be it quoted or not.

    Beside each, whether it stands behind `&&` or `||`.
    """
    text = ASKED.sub(_program, text)
    text = NOISE.sub(lambda found: found[1] or " ", text).replace("\\\n", " ")  # no comment goes on in the next line
    for _ in range(DEEPEST):
        inner = [of_dollar or of_ticks for of_dollar, of_ticks in SUBSTITUTED.findall(text)]
        text = "\n".join((SUBSTITUTED.sub("$_", text), *inner))
    found: list[tuple[list[str], bool]] = []
    end = 0
    for each in COMMAND.finditer(text):
        if not each[0].isspace():
            found.append((_split(each[0]), text[end : each.start()].lstrip().startswith(AND_OR)))
            end = each.end()
    return found


def _program(asked: re.Match[str]) -> str:
    """Return the program that a shell would put here, where that starts the ranks, else the text as it is."""
    program = asked[asked.lastindex or 0]
    return program if _is_starter(program.split()) else asked[0]  # another may be before an mpirun, as $SUDO is


def _named(text: str, starting: Mapping[str, bool]) -> str:
    """Return a text with `mpirun` for `$NAME` and `${NAME}` where they stand for what starts the ranks."""
    return NAME.sub(lambda found: PROGRAMS[0] if starting.get(found[2]) else found[0], text)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quotation ends on another line
        return line.split()


def _inline(command: Sequence[str]) -> str:
    """Return the text that a command hands on to a shell: `bash -c TEXT`, or what is behind `su -c` and `eval`."""
    if command and is_shell(command):
        text, inline = _operand(command)
        return text if inline else ""
    return command[0] if command and " " in command[0] else ""


def _files_of(commands: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the texts of the scripts that commands start, after `cd DIR` those there."""
    directory = Path()
    for command in map(_command, commands):
        if command[:1] == ["cd"] and len(command) == 2:
            directory /= command[1]
        elif command[:1] in (["."], ["source"]) and len(command) > 1:
            yield _text_of(directory / command[1])
        elif not _inline(command):
            yield _file_of(command, directory)


def _file_of(command: Sequence[str], directory: Path = Path()) -> str:
    """Return the text of the file that a shell is to run, nothing where the command is no shell."""
    if not command:
        return ""
    if is_shell(command):
        return _text_of(directory / _operand(command)[0])
    program = str((directory / command[0]).absolute()) if "/" in command[0] else command[0]
    text = _text_of(shutil.which(program) or "")
    return text if re.match(rf"#!.*\b({'|'.join(SHELLS)})\b", text) else ""


def _operand(command: Sequence[str]) -> tuple[str, bool]:
    """Return the first word behind a shell's options, and whether it is the script itself, not its name."""
    left, inline = list(command[1:]), False
    while left and left[0][:1] in ("-", "+"):
        option = left.pop(0)
        inline |= "c" in option and not option.startswith("--")
        if option in SHELL_VALUES or option[-1] in "oO":
            del left[:1]
    return (left[0] if left else ""), inline


def _text_of(path: str | Path) -> str:
    """Return the beginning of a file, nothing of one that cannot be read, or only once."""
    with suppress(OSError):
        if Path(path).is_file():
            with Path(path).open("rb") as file:
                return file.read(READ_BYTES).decode(errors="replace")
    return ""
