"""The shell scripts of a bundle. They need /bin/sh, and `readlink` where a symbolic link leads to them."""

from __future__ import annotations

WRAPPED = ("torchrun", "mpirun", "mpiexec")
PROGRAM = "bin/trainer-agent"
START = "start.py"
START_TEXT = """\
from trainer_agent.__main__ import main

main()
"""
# The shell is replaced, so that signals meet the program. The image's libraries come after ours: where the driver's
# are mounted, only LD_LIBRARY_PATH says it.
_RUN = """\
#!/bin/sh
# Made by `trainer-agent install`.
me=$0
case $me in */*) ;; *) me=./$me ;; esac
while [ -h "$me" ]; do
  to=$(readlink "$me") || exit 126
  case $to in /*) me=$to ;; *) me=${{me%/*}}/$to ;; esac
done
root=$(CDPATH= cd -P -- "${{me%/*}}/{root}" && pwd -P) || exit 126
exec "$root/{loader}" --argv0 "$root/bin/python3" \\
  --library-path "$root/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" "$root/{interpreter}" {arguments} "$@"
"""
_WRAP = """\
#!/bin/sh
# Made by `trainer-agent install`.
me=$0
[ ! -h "$me" ] || me=$(readlink -f "$me") || exit 126
exec "${{me%/*}}/../bin/trainer-agent" wrap {program} "$@"
"""
# For BASH_ENV, which every `bash -c` reads before its command: the image keeps its own PATH, behind the wrappers.
_BASH_ENV = """\
case ":$PATH:" in
  *":${BASH_SOURCE[0]%/*}/wrappers:"*) ;;
  *) PATH="${BASH_SOURCE[0]%/*}/wrappers:$PATH" ;;
esac
"""
# -I: nothing of the image's PYTHON… variables and directories; -S: the distributions lie in the standard library.
_FLAGS = "-I -S"


def inner(interpreter: str, loader: str) -> dict[str, str]:
    """Return the scripts of a version, by place; its `bin/python3` is what Python takes itself for."""
    return {"bin/python3": _run("..", interpreter, loader, _FLAGS), START: START_TEXT}


def outer(name: str, interpreter: str, loader: str) -> dict[str, str]:
    """Return the scripts that make the version in the directory `name` the one in use; the program itself last."""
    return {
        "bash_env": _BASH_ENV,
        **{f"wrappers/{program}": _WRAP.format(program=program) for program in WRAPPED},
        PROGRAM: _run(f"../{name}", interpreter, loader, f'{_FLAGS} "$root/{START}"'),
    }


def _run(root: str, interpreter: str, loader: str, arguments: str) -> str:
    return _RUN.format(root=root, loader=loader, interpreter=interpreter, arguments=arguments)
