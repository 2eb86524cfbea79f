"""The name of rank 0: every other node looks it up, again and again, before the first step."""

import statistics

from trainer_agent.check import Context, Outcome, Rule, Skip, check
from trainer_agent.errors import Action, Finding, Severity
from trainer_agent.host import NameLookupError
from trainer_agent.log import get_logger

LOOKUP_S = 10.0  # two attempts of glibc's 5 s
AGAIN_S = 2.0
PAUSE_S = 0.5
BETWEEN_S = 0.25
TIMES = 4
PROGRESS_S = 10.0
MARGIN_S = LOOKUP_S + TIMES * (AGAIN_S + BETWEEN_S) + 1

MISSING = Rule(
    "name-missing",
    when="the name server says until --rendezvous-timeout that rank 0's name does not exist",
    hint="check that the pod of rank 0 exists and that its headless Service has publishNotReadyAddresses: true",
    source="KEP-3416: stop when the name never resolves",
)
SERVER = Rule(
    "name-server-failing",
    when="the name server fails or is silent until --rendezvous-timeout",
    hint="look at the CoreDNS pods, and at NetworkPolicies that forbid this pod port 53",
    action=Action.RETRY,
    source="getaddrinfo: EAI_AGAIN, EAI_FAIL, or no answer within 10 s",
)
FLAPS = Rule(
    "name-flaps",
    when="after rank 0's name has resolved, one of 4 more lookups fails or has another answer",
    hint="look at the CoreDNS pods, and whether the pod of rank 0 is being replaced",
    severity=Severity.WARNING,
    source="KEP-3416: warn when the name flaps",
)


def deadline_s(context: Context) -> float:
    """Return the wait for the name and the time for the lookups after it."""
    return context.options.rendezvous_timeout_s + MARGIN_S


@check("rendezvous-dns", rules=(MISSING, SERVER, FLAPS), timeout_s=deadline_s, waits_for_nodes=True)
def rendezvous_dns(context: Context) -> Outcome:
    """Does the name of rank 0 resolve, and does it go on resolving to the same address?"""
    topology = context.topology
    if topology.single_node:
        raise Skip("one node: torchrun runs standalone, no name is needed")
    if not topology.master_addr:
        raise Skip("there is no name to look up: the check environment says why")
    lookups = _Lookups(context, topology.master_addr)
    try:
        first = lookups.wait()
    except NameLookupError as error:
        rule = SERVER if error.published is None else MISSING
        waited = f"{context.options.rendezvous_timeout_s:g} s"
        message = f"{topology.master_variable}: {error.message}, wanted an address within {waited}"
        return Outcome("no address", (rule.found(message, name=lookups.name),), lookups.measurements())
    answers = [first, *(lookups.again() for _ in range(TIMES))]
    return Outcome(
        f"{lookups.name} is {', '.join(first)}", tuple(_flapping(lookups.name, answers)), lookups.measurements()
    )


def _flapping(name: str, answers: list[list[str]]) -> list[Finding]:
    if all(answer == answers[0] for answer in answers):
        return []
    said = "; ".join(", ".join(answer) or "no answer" for answer in answers)
    message = f"{name} gave {len(answers)} answers that differ ({said}), wanted the same each time"
    return [FLAPS.found(message, answers=answers)]


class _Lookups:
    """Lookups of one name, each timed."""

    def __init__(self, context: Context, name: str) -> None:
        self.host = context.host
        self.name = name
        self.timeout_s = context.options.rendezvous_timeout_s
        self.started = self.told = self.host.monotonic()
        self.milliseconds: list[float] = []

    def wait(self) -> list[str]:
        """Return the first answer; raise the last failure when the time is over."""
        while True:
            left = self.started + self.timeout_s - self.host.monotonic()
            try:
                return self._look_up(max(AGAIN_S, min(LOOKUP_S, left)))
            except NameLookupError as error:
                if self.host.monotonic() - self.started >= self.timeout_s:
                    raise
                self._tell(error)
                self.host.sleep(PAUSE_S)

    def again(self) -> list[str]:
        """Return another answer, empty when there is none."""
        self.host.sleep(BETWEEN_S)
        try:
            return self._look_up(AGAIN_S)
        except NameLookupError:
            return []

    def measurements(self) -> dict[str, float]:
        """Return median and maximum of the lookups."""
        median, most = statistics.median(self.milliseconds), max(self.milliseconds)
        return {
            "lookups": len(self.milliseconds),
            "lookup_median_ms": round(median, 1),
            "lookup_max_ms": round(most, 1),
        }

    def _look_up(self, timeout_s: float) -> list[str]:
        began = self.host.monotonic()
        try:
            return sorted(self.host.resolve(self.name, timeout_s=timeout_s))
        finally:
            self.milliseconds.append((self.host.monotonic() - began) * 1000)

    def _tell(self, error: NameLookupError) -> None:
        now = self.host.monotonic()
        if now - self.told >= PROGRESS_S:
            self.told = now
            waited = round(now - self.started)
            get_logger().info(
                "waiting for rank 0's name",
                name=self.name,
                waited_s=waited,
                timeout_s=self.timeout_s,
                last=error.message,
            )
