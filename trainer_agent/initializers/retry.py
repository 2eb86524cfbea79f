"""Try again: how often, and how long to wait in between."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from trainer_agent.initializers import PATIENCE_S, ChangedError, NoRangesError, TransientError
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 20.0
# A server's Retry-After is obeyed up to this; one that asks for an hour will not be there in time.
LONGEST_RETRY_AFTER_S = 300.0


def pause_s(attempt: int, retry_after_s: float | None) -> float:
    """Return how long to wait after failed attempt 1, 2…: 0.2 s doubling, or what the server asked for if longer."""
    jitter = random.uniform(0.5, 1.0)  # noqa: S311  # spreads clients, keeps no secret
    own = min(FIRST_PAUSE_S * 2.0 ** min(attempt - 1, 10), LONGEST_PAUSE_S) * jitter
    if retry_after_s is None:
        return own
    return max(own, min(retry_after_s, LONGEST_RETRY_AFTER_S) + jitter * FIRST_PAUSE_S)


def persist(function: Callable[[], T], *, patience_s: float = PATIENCE_S) -> T:
    """
    Return what `function` returns, calling it again after a `TransientError`.

    Raises:
        TransientError: the last one, once the next attempt would begin later than `patience_s` after the first; a
            server that says when to come again gets five times as long.
    """
    started = time.monotonic()
    attempt = 0
    while True:
        try:
            return function()
        except (ChangedError, NoRangesError):
            raise
        except TransientError as error:
            attempt += 1
            pause = pause_s(attempt, error.retry_after_s)
            longest = patience_s * (1 if error.retry_after_s is None else 5)
            if time.monotonic() + pause > started + longest:
                raise
            get_logger().warning(error.message, code=error.code, attempt=attempt, again_in_s=round(pause, 1))
        time.sleep(pause)
