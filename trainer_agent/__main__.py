"""The program's entry point."""

import io
import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    if sys.argv[1:2] == ["wrap"]:  # before anything is imported: below us, a torchrun of the user's costs little more
        from trainer_agent.wrappers import shortcut

        shortcut(sys.argv[2:], os.environ)
    from trainer_agent.errors import Terminated
    from trainer_agent.process import catch_termination, hear_of_children

    try:
        # Before click is imported: a PID 1 without a handler never sees the signal, the kernel drops it.
        catch_termination()
        hear_of_children()
        _open_standard_files()
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # arguments and variables may hold any bytes
        from trainer_agent.cli import run

        code = run(sys.argv[1:])
    except Terminated as error:  # while the command line was imported
        code = 128 + error.signum
    sys.exit(code)


def _open_standard_files() -> None:
    """Have files 0, 1 and 2, which whoever starts us may have closed; pipes of ours must not get their numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)  # noqa: FBT003  # as os has it
    os.close(fd)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


if __name__ == "__main__":
    main()
