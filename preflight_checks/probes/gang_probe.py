"""
The part of a gang's node that needs torch: the connection to the meeting place, and the ranks of collectives.

torch is imported once, here; every other process is a fork of this one, so that a rank that had to be killed is
replaced in milliseconds. This one starts no thread and touches no device, as nothing of that survives a fork.

Orders come on standard input, events go to standard output, each a JSON object on a line; the end of standard input
is the end of all. The requests to the store and its answers have pipes of their own.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Callable

import probe_gang_rank
import probe_gang_store
from probe_base import import_torch

PR_SET_PDEATHSIG = 1
DIES_S = 1.0


class Zygote:
    """Forks the process of the store and those of the ranks, and says how each ended."""

    def __init__(self, torch: Any, store_fds: list[int]) -> None:
        self.torch = torch
        self.store_fds = store_fds
        self.store = 0
        self.ranks: dict[int, tuple[int, int]] = {}  # by number: its pid, and where its tasks go
        self.wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Follow orders until there are no more."""
        say(ready=True, torch=self.torch.__version__)
        rest = b""
        while True:
            ready, _, _ = select.select([0, self.wake], [], [])
            if self.wake in ready:
                os.read(self.wake, 512)
                self.bury()
            if 0 in ready:
                chunk = os.read(0, 1 << 16)
                if not chunk:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self.obey(json.loads(line))
        self.kill([self.store, *(pid for pid, _ in self.ranks.values())])

    def obey(self, order: dict[str, Any]) -> None:
        """Follow one order."""
        if "store" in order:
            self.kill([self.store])
            self.store = self.fork(lambda: probe_gang_store.serve(self.torch, *self.store_fds, order["store"]))
        for number, task in order.get("tasks", {}).items():
            self.give(int(number), task)
        if "end" in order:
            ends = [self.ranks.pop(number) for number in order["end"] if number in self.ranks]
            self.kill([pid for pid, _ in ends])
            for _, tasks in ends:
                os.close(tasks)

    def give(self, number: int, task: dict[str, Any]) -> None:
        """Give a task to a rank, to a new one where there is none that lives."""
        line = f"{json.dumps(task)}\n".encode()
        for _ in range(2):
            if number not in self.ranks:
                self.ranks[number] = self.start(number)
            try:
                os.write(self.ranks[number][1], line)
                return
            except BrokenPipeError:  # it ended just now
                os.close(self.ranks.pop(number)[1])

    def start(self, number: int) -> tuple[int, int]:
        """Start a rank."""
        tasks, ours = os.pipe()
        pid = self.fork(lambda: probe_gang_rank.serve(self.torch, number, tasks), tasks)
        os.close(tasks)
        return pid, ours

    def fork(self, work: Callable[[], None], keep: int = -1) -> int:
        """Do `work` in a child that dies with this process."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        with suppress(BaseException):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for _, tasks in self.ranks.values():
                if tasks != keep:
                    os.close(tasks)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            work()
            code = 0
        os._exit(code)

    def bury(self) -> None:
        """Say how the ranks ended that did so by themselves."""
        for number, (pid, tasks) in list(self.ranks.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                os.close(tasks)
                del self.ranks[number]
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                say(rank=number, pid=pid, code=code)

    @staticmethod
    def kill(pids: list[int]) -> None:
        """End children; one that does not die, as it waits for a device, is left to whoever works for us."""
        for pid in filter(None, pids):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                deadline = time.monotonic() + DIES_S
                while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
                    time.sleep(0.002)


def say(**event: Any) -> None:
    """Report an event in one write: a pipe then keeps the lines of all processes whole."""
    os.write(1, f"\n{json.dumps(event)}\n".encode())


if __name__ == "__main__":
    found = import_torch()
    probe_gang_store.refuse_unfit(found)

    Zygote(found, json.loads(sys.argv[1])["store"]).serve()
