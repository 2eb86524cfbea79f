"""
The connection of a node to the meeting place, a TCPStore; on the node that serves it, the meeting place itself.

One request after the other, each a JSON object on a line; so is each answer, after an empty line: the process before
this one may have been killed in the middle of its own.
"""

from __future__ import annotations

import json
import os
import select
import sys
from datetime import timedelta
from typing import Any, Callable

NO_USE = 4  # the exit code where torch cannot do it
# What the nodes use of it; `check` is the youngest, of December 2023 (pytorch#116144).
NEEDED = ("set", "multi_get", "add", "compare_set", "check", "set_timeout")


def refuse_unfit(torch: Any) -> None:
    """End with NO_USE where this torch has not all that the nodes need to meet."""
    lack = _lack(getattr(torch, "distributed", None))
    if lack:
        sys.stderr.write(f"torch {torch.__version__} has no {lack}\n")
        sys.exit(NO_USE)


def _lack(distributed: Any) -> str:
    if distributed is None or not distributed.is_available():
        return "torch.distributed"
    store = getattr(distributed, "TCPStore", None)
    return ", ".join(f"TCPStore.{name}" for name in NEEDED if not hasattr(store, name))


class Place:
    """What can be asked of the store. A key that is asked for has to be there, else the answer takes `timeout_s`."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.store: Any = None
        self.server: Any = None

    def serve(self, port: int, timeout_s: float) -> None:
        """Open the meeting place on all addresses."""
        self.server = self.store = self._store("localhost", port, timeout_s, is_master=True)

    def connect(self, host: str, port: int, timeout_s: float) -> None:
        """Connect to it."""
        self.store = self._store(host, port, timeout_s, is_master=False)

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        self.store.set(key, value)

    def get(self, keys: list[str]) -> list[str]:
        """Return values."""
        return [value.decode() for value in self.store.multi_get(keys)] if keys else []

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and return it."""
        return int(self.store.add(key, amount))

    def compare_set(self, key: str, expected: str, value: str) -> str:
        """Set a value where it is what is expected, or not there when that is nothing; return what is there now."""
        return str(self.store.compare_set(key, expected, value).decode())

    def has(self, keys: list[str]) -> bool:
        """Return whether all keys are there."""
        return bool(self.store.check(keys))

    def _store(self, host: str, port: int, timeout_s: float, *, is_master: bool) -> Any:
        how = {"is_master": is_master, "wait_for_workers": False, "timeout": timedelta(seconds=timeout_s)}
        return self.torch.distributed.TCPStore(host, port, None, **how)


def serve(torch: Any, requests: int, answers: int, number: int) -> None:
    """Say that this process, of this number, is there; then answer requests until there are no more."""
    place = Place(torch)
    _forget(requests)
    _write(answers, f"\n{json.dumps({'store': number})}\n".encode())
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            request = json.loads(line)
            number, name = request.pop("id"), request.pop("do")
            answer = {"id": number, **_answer(getattr(place, name), request)}
            _write(answers, f"\n{json.dumps(answer)}\n".encode())


def _answer(work: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": work(**request)}
    except Exception as error:  # noqa: BLE001  # whoever asked waits, and wants to know
        return {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}


def _forget(requests: int) -> None:
    """Take away what the process before this one was asked and has not read: nobody waits for it."""
    while select.select([requests], [], [], 0)[0] and os.read(requests, 1 << 16):
        pass


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
