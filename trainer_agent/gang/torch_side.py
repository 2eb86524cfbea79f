"""The processes of this node that have torch: one that talks to the meeting place, and the ranks of collectives."""

from __future__ import annotations

import json
import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self

from trainer_agent.errors import AgentError
from trainer_agent.gang.store import StoreLostError
from trainer_agent.guarded import END_S, start_guarded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANSWER_S = 4.0  # for the store to answer; over a network that works it takes less than a millisecond
LONGEST_SLEEP_S = 0.25  # a signal between Python's last look and the system call is seen only when the call returns
NO_TORCH = {3: "has no torch", 4: "cannot do it with its torch"}  # by the exit code of its program
# No name is looked up by the torch side: it gets addresses. torch asks for the name of every address that it connects
# to, and with a name server that does not answer that takes glibc 5 s and more, each time.
NO_NAMES = {"RES_OPTIONS": "attempts:0"}
# A job may have torch look for its own mistakes. When a rank fails, that leaves a raw key in the store, which makes
# every later process group stop and dump (ProcessGroupNCCL's broadcastDumpSignal), on by default since torch 2.6; and
# DETAIL puts a collective of gloo's before each of NCCL's.
NO_DEBUGGING = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_DISTRIBUTED_DEBUG": "OFF",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    "TORCH_FR_BUFFER_SIZE": "0",
    "TORCH_NCCL_DESYNC_DEBUG": "0",
    "TORCH_NCCL_NAN_CHECK": "0",
}


class TorchSideError(AgentError):
    """The torch side cannot be started, or ended; `no_torch` when there is no Python with a torch that will do."""

    def __init__(self, reason: str, *, no_torch: bool = False) -> None:
        super().__init__("torch-side-ended", f"the process that connects this node with the others {reason}")
        self.no_torch = no_torch


class _Pipe:
    """What another process writes, as JSON lines."""

    def __init__(self) -> None:
        self.fd, self.theirs = os.pipe()
        os.set_blocking(self.fd, False)
        self.begun: list[bytes] = []  # of a line that has not ended
        self.ended = False

    def read(self, deadline: float) -> list[dict[str, Any]]:
        """Return what has come, at least one line or nothing until `deadline` on the monotonic clock."""
        found: list[dict[str, Any]] = []
        while not found and not self.ended:
            left = deadline - time.monotonic()
            if select.select([self.fd], [], [], min(LONGEST_SLEEP_S, max(0.0, left)))[0]:
                found = self._take()
            elif left <= 0:
                break
        return found

    def _take(self) -> list[dict[str, Any]]:
        chunk = os.read(self.fd, 1 << 20)
        self.ended = not chunk
        self.begun.append(chunk)
        if b"\n" not in chunk:
            return []
        *lines, rest = b"".join(self.begun).split(b"\n")
        self.begun = [rest]
        found = []
        for line in lines:
            with suppress(ValueError):  # somebody was killed in the middle of it
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict)]


class TorchSide:
    """
    The torch side of this node; it ends with the `with` block.

    Args:
        python: the interpreter of the training environment.
        program: the file that it runs.
        environ: its environment variables.
    """

    def __init__(self, python: str, program: str, environ: Mapping[str, str]) -> None:
        self.events_pipe, self.answers = _Pipe(), _Pipe()
        theirs, self.orders = os.pipe()
        requests, self.requests = os.pipe()
        for fd in (self.orders, self.requests):
            os.set_blocking(fd, False)
        argv = [python, program, json.dumps({"store": [requests, self.answers.theirs]})]
        self.program = start_guarded(
            argv,
            environ={**environ, **NO_NAMES, **NO_DEBUGGING},
            stdin=theirs,
            stdout=self.events_pipe.theirs,
            fds=(requests, self.answers.theirs),
        )
        for fd in (theirs, requests, self.events_pipe.theirs, self.answers.theirs):
            os.close(fd)
        self.number = 0
        self.has_store = False
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all of it."""
        if self.closed:
            return
        self.closed = True
        with suppress(OSError):
            self.program.end()
        for fd in (self.orders, self.requests, self.events_pipe.fd, self.answers.fd):
            os.close(fd)

    def wait_until_ready(self, timeout_s: float) -> None:
        """
        Return when torch is imported.

        Raises:
            TorchSideError: it is not within `timeout_s` seconds, or there is none.
        """
        deadline = time.monotonic() + timeout_s
        while not any(event.get("ready") for event in self.events(deadline - time.monotonic())):
            if time.monotonic() > deadline:  # else it was something that its Python says when it starts
                raise TorchSideError(f"has not imported torch within {timeout_s:g} s")

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """
        Return what the ranks said; nothing when they say nothing for so long.

        Raises:
            TorchSideError: the whole torch side has ended.
        """
        found = self.events_pipe.read(time.monotonic() + timeout_s)
        if not found and self.events_pipe.ended:
            self._raise_end()
        return found

    def give(self, tasks: Mapping[int, Mapping[str, Any]]) -> None:
        """Give tasks to ranks, by number."""
        self._order({"tasks": {str(number): task for number, task in tasks.items()}})

    def end(self, numbers: Sequence[int]) -> None:
        """Kill ranks; the next task for one starts another."""
        self._order({"end": list(numbers)})

    def ask(self, what: str, *, answer_s: float = ANSWER_S, **how: Any) -> Any:
        """
        Return the store's answer.

        Raises:
            StoreLostError: it refuses, or there is none in time; then the process that asked is replaced, and has to
                connect anew.
            TorchSideError: the whole torch side has ended.
        """
        self.number += 1
        if not self.has_store:
            self._order({"store": self.number})
            self._answer("store", answer_s)
            self.has_store = True
        line = json.dumps({"id": self.number, "do": what, **how})
        deadline = time.monotonic() + answer_s
        if not self._write(self.requests, f"{line}\n".encode(), deadline):
            self.has_store = False
            raise StoreLostError(f"it takes no request within {answer_s:g} s")
        answer = self._answer("id", answer_s)
        if "error" in answer:
            raise StoreLostError(answer["error"])
        return answer["value"]

    def _answer(self, name: str, answer_s: float) -> dict[str, Any]:
        """Return the answer to the last request or order; `name` is the key of its number."""
        deadline = time.monotonic() + answer_s
        while answers := self.answers.read(deadline):
            for answer in answers:
                if answer.get(name) == self.number:
                    return answer
        self.has_store = False
        if self.answers.ended:
            self._raise_end()
        raise StoreLostError(f"no answer within {answer_s:g} s")

    def _order(self, order: Mapping[str, Any]) -> None:
        if not self._write(self.orders, f"{json.dumps(order)}\n".encode(), time.monotonic() + ANSWER_S):
            raise TorchSideError(f"takes no order within {ANSWER_S:g} s")

    def _write(self, fd: int, data: bytes, deadline: float) -> bool:
        """Return whether all of it was taken until `deadline` on the monotonic clock."""
        view = memoryview(data)
        try:
            while view and (left := deadline - time.monotonic()) > 0:
                if select.select([], [fd], [], min(LONGEST_SLEEP_S, left))[1]:
                    view = view[os.write(fd, view) :]
        except BrokenPipeError:
            self._raise_end()
        return not view

    def _raise_end(self) -> NoReturn:
        try:
            ended = self.program.wait(END_S)
        except OSError as error:
            reason = f"cannot be started: {error.strerror}; --python names another Python"
            raise TorchSideError(reason, no_torch=True) from error
        if ended.code in NO_TORCH:
            raise TorchSideError(f"{NO_TORCH[ended.code]}: {ended.last_words}", no_torch=True)
        how = f"does not end: {ended.problem.lstrip('; ')}" if ended.code is None else ended.end or "ended"
        raise TorchSideError(f"{how}{f': {ended.last_words}' if ended.last_words else ''}")


class TorchStore:
    """The meeting place, through the torch side; see `trainer_agent.gang.store.Store`."""

    def __init__(self, side: TorchSide) -> None:
        self.side = side

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        self.side.ask("set", key=key, value=value)

    def get(self, keys: Sequence[str]) -> list[str]:
        """Return the values of keys that are there."""
        return list(self.side.ask("get", keys=list(keys)))

    def add(self, key: str, amount: int) -> int:
        """Add to a number."""
        return int(self.side.ask("add", key=key, amount=amount))

    def compare_set(self, key: str, expected: str, value: str) -> str:
        """Set a value where it is what is expected."""
        return str(self.side.ask("compare_set", key=key, expected=expected, value=value))

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are there."""
        return bool(self.side.ask("has", keys=list(keys)))
