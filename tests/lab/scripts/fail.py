"""Rank 1 fails in the way the first argument names, while the others wait for a collective that never comes."""

import os
import signal
import sys
from collections.abc import Callable

HUGE = "".join(f'"layer {i}" \u2192 caf\u00e9 \\ \u0001\n' for i in range(5000))


def exit42() -> None:
    sys.exit(42)


def sigkill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sigsegv() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def exception() -> None:
    raise ValueError("the loss is not a number")


def huge() -> None:
    raise ValueError(HUGE)


def long_line() -> None:
    raise ValueError(f"{'long ' * 40_000}and its end")


def recorded(way: Callable[[], None] = exception) -> None:
    from torch.distributed.elastic.multiprocessing.errors import record

    record(way)()


def huge_recorded() -> None:
    recorded(huge)


def out_of_memory() -> None:
    kept = []
    while True:
        kept.append(os.urandom(1 << 24))


if os.environ["RANK"] == "1":
    globals()[sys.argv[1]]()
while True:
    signal.pause()
