"""
Run a program and write down what it used: `python -I -S launcher.py REPORT COMMAND…`.

A process begins with the peak memory of the one that started it, so this one is as small as a Python can be.
"""

import os
import sys
import time


def main() -> int:
    """Write seconds, processor seconds and peak KiB; return how the program ended."""
    report, *command = sys.argv[1:]
    began = time.perf_counter()
    child = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - began
    with open(report, "w") as file:  # noqa: PTH123  # pathlib is megabytes
        file.write(f"{seconds} {usage.ru_utime + usage.ru_stime} {usage.ru_maxrss}")
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
