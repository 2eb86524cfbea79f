"""The meeting place as the gang uses it: keys and values that all nodes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trainer_agent.errors import RetryError

if TYPE_CHECKING:
    from collections.abc import Sequence


class StoreLostError(RetryError):
    """The meeting place does not answer."""

    def __init__(self, reason: str) -> None:
        super().__init__("meeting-place-lost", f"the meeting place does not answer: {reason}")


class Store(Protocol):
    """
    What the gang needs of a torch.distributed.TCPStore. Numbers are texts, too.

    Raises:
        StoreLostError: from every method, when there is no answer within some seconds.
    """

    def set(self, key: str, value: str) -> None:
        """Set a value."""

    def get(self, keys: Sequence[str]) -> list[str]:
        """Return the values of keys that are there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins with 0, and return it."""

    def compare_set(self, key: str, expected: str, value: str) -> str:
        """Set a value where it is what is expected, or not there when that is empty; return what is there now."""

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are there."""
