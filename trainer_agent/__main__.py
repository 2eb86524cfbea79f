"""The program's entry point."""

import sys

from trainer_agent.process import catch_termination


def main() -> None:
    """Run the command line and exit with its code."""
    # Before click is imported: a PID 1 without a handler never sees the signal, the kernel drops it.
    catch_termination()
    from trainer_agent.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
