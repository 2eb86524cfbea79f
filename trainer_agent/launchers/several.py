"""
Run a command several times at once, each time with other values of some variables.

    python -m trainer_agent.launchers.several --each RANK=4,5 --each CUDA_VISIBLE_DEVICES=0,1 -- python train.py

Launchers put this before the user's command where one container has to hold several processes. It ends with the exit
code of the one that failed first, and nothing of the others is left. That one's last words are told once more at the
end: the others, who lost it, have said theirs meanwhile.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from subprocess import DEVNULL
from typing import TYPE_CHECKING

from trainer_agent import log
from trainer_agent.errors import AgentError
from trainer_agent.launchers.autopsy import SAME_MOMENT_S, TRACEBACK, Autopsy
from trainer_agent.launchers.supervise import (
    DRAIN_SECONDS,
    FORWARDED,
    LOOK_S,
    NO_DEADLINE_S,
    STOPPING,
    start,
)
from trainer_agent.process import (
    adopt_orphans,
    children_left,
    ended_children,
    ending,
    exit_code,
    hear_of_children,
    heeded,
    kill_descendants,
    write_whole,
)
from trainer_agent.shells import BelowShells, living, tell

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

MODULE = "trainer_agent.launchers.several"
# After one has failed, the others wait for it in vain: they get this long to end by themselves.
GRACE_S = 5.0
UNCAUGHT = 1 << 8  # the status of a Python that ends with a traceback
LOG_FORMAT = "TRAINER_AGENT_LOG_FORMAT"


def words(each: Mapping[str, Sequence[str]], argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs `argv` once for every position in the lists of `each`."""
    flags = [word for name, values in each.items() for word in ("--each", f"{name}={','.join(values)}")]
    # -P: the user's directory, where we are started, may hold a signal.py.
    return (sys.executable, "-P", "-m", MODULE, *flags, "--", *argv)


def several(
    argv: Sequence[str], env: Mapping[str, str], each: Mapping[str, Sequence[str]], *, grace_s: float = GRACE_S
) -> int:
    """
    Run `argv` once for every position in the lists of `each`; return 0, or the exit code of what failed first.

    Signals go to all. After one has failed, the others get SIGTERM, and SIGKILL after the grace; after a stopping
    signal from outside they may take as long as they need, as whoever sent it counts the grace.

    Raises:
        FatalError: the command cannot be started.
    """
    return _Several(argv, env, each, grace_s=grace_s).run()


class _Several:
    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], each: Mapping[str, Sequence[str]], *, grace_s: float
    ) -> None:
        self.argv = argv
        self.copies = [dict(zip(each, values, strict=True)) for values in zip(*each.values(), strict=True)]
        self.env = env
        self.grace_s = grace_s
        self.running: dict[int, int] = {}
        self.heard = [_Heard(elastic_agent=False) for _ in self.copies]
        self.pumps: list[threading.Thread] = []
        self.below = BelowShells()
        self.failed: tuple[int, int] | None = None
        self.failed_at = 0.0
        self.stopping = False
        self.deadline = float("inf")

    def run(self) -> int:
        waited = {*heeded(FORWARDED), signal.SIGCHLD}
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
        try:
            adopt_orphans()
            self._start()
            while self.running or living(self.below.awaited):
                self._step(waited)
        finally:
            if children_left():
                kill_descendants()
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        for pump in self.pumps:
            pump.join(DRAIN_SECONDS)
        if self.failed is None:
            return 0
        index, status = self._culprit(self.failed)
        log.get_logger().error(f"the process with {self._name(index)} {ending(os.waitstatus_to_exitcode(status))}")
        if words := self.heard[index].failure(exit_code(status)).error:
            write_whole(sys.stderr.fileno(), f"{words}\n".encode(), within_s=log.PATIENCE_S)
        return exit_code(status)

    def _start(self) -> None:
        stdin = DEVNULL if os.isatty(0) else None  # they cannot share a terminal: whoever read from it would be stopped
        for index, own in enumerate(self.copies):
            pid, pump = start(self.argv, env={**self.env, **own}, feed=self.heard[index].feed, stdin=stdin)
            self.running[pid] = index
            self.pumps += [pump] if pump else []
        for pump in self.pumps:
            pump.start()

    def _culprit(self, failed: tuple[int, int]) -> tuple[int, int]:
        """Return whose traceback came first, where more than one raised: Python takes its time to end after it."""
        told = [(heard.raised_at, index) for index, heard in enumerate(self.heard)]
        raised = [each for each in told if self.failed_at - SAME_MOMENT_S < each[0] <= self.failed_at]
        return (min(raised)[1], UNCAUGHT) if raised and failed[1] == UNCAUGHT else failed

    def _name(self, index: int) -> str:
        """What a process differs in first, such as DMLC_TASK_ID=4."""
        return "=".join(next(iter(self.copies[index].items())))

    def _step(self, waited: set[signal.Signals]) -> None:
        longest = LOOK_S if self.below.awaited else NO_DEADLINE_S
        info = signal.sigtimedwait(waited, min(longest, max(0.0, self.deadline - time.monotonic())))
        self.below.tell_late(time.monotonic())
        if info is None:
            if time.monotonic() >= self.deadline:
                self.deadline = float("inf")
                self.below = BelowShells()  # who is not ours to kill is not awaited for ever
                kill_descendants()
        elif info.si_signo == signal.SIGCHLD:
            self._reap()
        else:
            self.stopping = self.stopping or info.si_signo in STOPPING
            self._send(info.si_signo)

    def _send(self, signum: int) -> None:
        for pid in self.running if signum in STOPPING else ():
            self.below.look(pid, signum)
        tell((*self.running, *self.below.told), signum)

    def _reap(self) -> None:
        """Collect what has ended; of those that failed in one moment, what a signal killed is the cause."""
        failed = []
        for pid, status in ended_children():
            self.below.forget(pid)
            index = self.running.pop(pid, None)
            if index is not None and status:
                failed.append((not os.WIFSIGNALED(status), index, status))
        if failed and self.failed is None:
            self.failed, self.failed_at = min(failed)[1:], time.monotonic()
            if self.running and not self.stopping:
                log.get_logger().warning("one process failed, ending the others", grace_s=self.grace_s)
                self.deadline = time.monotonic() + self.grace_s
                self._send(signal.SIGTERM)


class _Heard(Autopsy):
    """What one process has said at last, and when its last traceback began."""

    raised_at = float("inf")

    def feed(self, line: bytes) -> bool:
        """Take one line."""
        if line.startswith(TRACEBACK.encode()):
            self.raised_at = time.monotonic()
        return super().feed(line)


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says; errors become one line of the log."""
    argv, each = _parse(arguments)
    hear_of_children()
    log.configure(os.environ, form=os.environ.get(LOG_FORMAT, "auto"))
    try:
        return several(argv, os.environ, each)
    except AgentError as error:
        log.get_logger().error(error.message, code=error.code, hint=error.hint, exit_code=int(error.exit_code))
        return int(error.exit_code)


def _parse(arguments: Sequence[str]) -> tuple[Sequence[str], dict[str, list[str]]]:
    parser = argparse.ArgumentParser(prog=MODULE, usage="%(prog)s --each NAME=A,B [--each …] -- COMMAND…")
    parser.add_argument("--each", action="append", required=True, type=_pair)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    each = dict(parser.parse_args(arguments[:end]).each)
    argv = arguments[end + 1 :]
    if not argv or len({len(values) for values in each.values()}) > 1:
        parser.error("wanted as many values in every --each, then -- and a command")
    return argv, each


def _pair(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=A,B")
    return name, values.split(",")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
