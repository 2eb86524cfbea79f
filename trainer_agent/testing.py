"""Stand-ins for tests of ours and of other people's checks; each replaces the world at its outermost door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_agent.accelerators import Accelerators
from trainer_agent.cgroup import read_limits
from trainer_agent.check import Context, Options, Outcome, Skip
from trainer_agent.host import Host, NameLookupError, Space
from trainer_agent.topology import read_topology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path, PurePath

    from trainer_agent.check import Check
    from trainer_agent.errors import AgentError

NO_DEVICES = Accelerators("none", 0, "0 device nodes")


class FakeHost(Host):
    """
    A machine laid out in a folder.

    Args:
        root: stands for `/`; write /proc and /sys files below it with `put`.
        names_at: what each name resolves to; a list of lists answers call by call, the last one for ever.
            An empty list means that the name does not exist.
        own: addresses of this machine; `busy` ports are taken on all of them.
        limits: soft limits such as `{"NOFILE": 1024}`; absent ones are unlimited.
        spaces: file systems by path.
    """

    def __init__(
        self,
        root: Path,
        *,
        names_at: Mapping[str, Sequence[str] | Sequence[Sequence[str]]] | None = None,
        own: Sequence[str] = ("10.0.0.1",),
        busy: Sequence[int] = (),
        cpus: int = 8,
        limits: Mapping[str, int] | None = None,
        spaces: Mapping[str, Space] | None = None,
    ) -> None:
        super().__init__(root)
        self.names_at = {name: _answers(value) for name, value in (names_at or {}).items()}
        self.own = own
        self.busy = busy
        self.cpus = cpus
        self.limits = limits or {}
        self.spaces = spaces or {}
        self.clock = 1_000_000.0
        self.slept = 0.0

    def put(self, path: str, text: str = "") -> None:
        """Write a file below the root."""
        real = self.path(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text)

    def hostname(self) -> str:
        """Return a name."""
        return "fake-host"

    def affinity(self) -> set[int]:
        """Return `cpus` CPUs."""
        return set(range(self.cpus))

    def rlimit(self, name: str) -> int | None:
        """Return what `limits` says."""
        return self.limits.get(name)

    def space(self, path: str | PurePath) -> Space | None:
        """Return what `spaces` says."""
        return self.spaces.get(str(path))

    def now(self) -> float:
        """Return the fake clock."""
        return self.clock

    def monotonic(self) -> float:
        """Return the fake clock."""
        return self.clock

    def sleep(self, seconds: float) -> None:
        """Advance the fake clock."""
        self.clock += seconds
        self.slept += seconds

    def resolve(self, name: str, *, timeout_s: float) -> list[str]:  # the fake answers at once
        """Return the next answer for `name`."""
        answers = self.names_at.get(name, [[]])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if not answer:
            raise NameLookupError(name, "Name or service not known", published=False)
        return list(answer)

    def resolve_all(self, names: Sequence[str], *, timeout_s: float) -> dict[str, list[str] | NameLookupError]:
        """Return the next answer for each name."""
        return {name: self._answer(name, timeout_s) for name in names}

    def _answer(self, name: str, timeout_s: float) -> list[str] | NameLookupError:
        try:
            return self.resolve(name, timeout_s=timeout_s)
        except NameLookupError as error:
            return error

    def claim(self, address: str, port: int) -> str:
        """Return whether the port is free on one of our addresses."""
        if address not in self.own:
            return "elsewhere"
        return "taken" if port in self.busy else "free"


def _answers(value: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    if value and not isinstance(value[0], str):
        return [list(v) for v in value]
    return [[str(v) for v in value]]


def context_on(
    host: Host,
    *,
    environ: Mapping[str, str] | None = None,
    accelerators: Accelerators = NO_DEVICES,
    nproc: int = 1,
    options: Options | None = None,
    refusal: AgentError | None = None,
) -> Context:
    """Return what a check would look at on a (fake) machine."""
    environ = environ or {}
    return Context(
        environ=environ,
        topology=read_topology(environ, hostname=host.hostname()),
        limits=read_limits(host),
        accelerators=accelerators,
        host=host,
        options=options or Options(),
        nproc=nproc,
        refusal=refusal,
    )


def run_check(check: Check, host: Host, **facts: Any) -> Outcome | str:
    """Run one check in this process on a (fake) machine, with the facts of `context_on`; a skip returns its reason."""
    try:
        return check.function(context_on(host, **facts))
    except Skip as skip:
        return str(skip)
