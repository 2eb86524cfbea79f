"""The program's entry point."""

import io
import sys

from trainer_agent.process import catch_termination


def main() -> None:
    """Run the command line and exit with its code."""
    # Before click is imported: a PID 1 without a handler never sees the signal, the kernel drops it.
    catch_termination()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # arguments and variables may hold any bytes
    from trainer_agent.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
