"""Work side by side, by as many threads as may be had."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


Item = TypeVar("Item")


def on_each(function: Callable[[Item], object], items: Iterable[Item], *, threads: int) -> None:
    """
    Call `function` with each item, by so many threads, or fewer where the container has no more; this one is the first.

    Raises:
        Exception: the first that `function` raised, after all have been called.
    """
    left, errors = deque(items), list[Exception]()

    def work() -> None:
        while True:
            try:
                item = left.popleft()
            except IndexError:
                return
            try:
                function(item)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is raised below
                errors.append(error)

    started = []
    for _ in range(min(threads, len(left)) - 1):
        thread = threading.Thread(target=work, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            break
        started.append(thread)
    work()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]
