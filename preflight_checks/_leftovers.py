"""Remove what a check puts into a file system, whatever becomes of the check."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from trainer_agent.guarded import keep_only
from trainer_agent.process import TERMINATION_SIGNALS, termination_held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def removed(remove: Callable[[], None]) -> Iterator[None]:
    """Have a process of its own call `remove` when we and our children are killed before the end of the block."""
    lifeline, held = os.pipe()
    with termination_held():
        pid = os.fork()
        if pid == 0:
            os.close(held)
            _watch(lifeline, remove)
    os.close(lifeline)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # somebody has killed it
            os.write(held, b"x")
        os.close(held)
        os.waitpid(pid, 0)


def _watch(lifeline: int, remove: Callable[[], None]) -> NoReturn:
    """In the fork, apart from our parent's group, which is killed: wait for its end, good or bad."""
    with suppress(BaseException):  # nothing may travel up into a copy of the parent's stack
        os.setsid()
        for signum in TERMINATION_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        keep_only(lifeline)
        if not os.read(lifeline, 1):
            remove()
    os._exit(0)
