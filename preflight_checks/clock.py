"""The clock: one that is off fails TLS and tokens, a slow one costs time in every step."""

import datetime as dt

from preflight_checks._kube import TRY_S, version_url
from trainer_agent.check import Context, Outcome, Rule, Skip, check
from trainer_agent.errors import Action, Finding, Severity
from trainer_agent.host import HttpsError

SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
FAST = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
SLOW = ("hpet", "acpi_pm")
RELEASED = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SKEW_S = 2.0
WORST_SKEW_S = 30.0

UNUSUAL = Rule(
    "clocksource-unusual",
    when=f"the kernel's clocksource is none of {', '.join(FAST)}",
    hint="nothing to do when all nodes have it; otherwise look at `dmesg | grep -i clocksource` on this node",
    severity=Severity.INFO,
    source="the sources that are read without a system call",
)
SLOW_SOURCE = Rule(
    "clocksource-slow",
    when=f"the kernel's clocksource is {' or '.join(SLOW)}",
    hint="look at `dmesg | grep -i clocksource` on this node: the kernel gave up on tsc, which a reboot often mends",
    severity=Severity.WARNING,
    source="reading these takes a microsecond or more instead of 20 ns, and profilers and NCCL read the clock often",
)
BEFORE_RELEASE = Rule(
    "clock-before-release",
    when="the clock says a year before 2026, when this program did not exist",
    hint="run `chronyc tracking` on the node and repair its time service; until then cordon it",
    action=Action.RESCHEDULE,
    source="certificates and tokens are not valid yet at such a time",
)
SKEWED = Rule(
    "clock-skewed",
    when="the clock differs from the API server's by more than 2 s",
    hint="run `chronyc tracking` on the node",
    severity=Severity.WARNING,
    source="heuristic; the server's Date header has a resolution of 1 s, which is taken off",
)
WRONG = Rule(
    "clock-wrong",
    when="the clock differs from the API server's by more than 30 s",
    hint="run `chronyc tracking` on the node and repair its time service; until then cordon it",
    action=Action.RESCHEDULE,
    source="heuristic: signed requests to S3 and short-lived tokens begin to fail",
)


@check("clock", rules=(UNUSUAL, SLOW_SOURCE, BEFORE_RELEASE, SKEWED, WRONG), timeout_s=TRY_S + 3)
def clock(context: Context) -> Outcome:
    """Is the clock right, and quick to read?"""
    source = (context.host.read(SOURCE) or "").strip()
    skew = _skew(context)
    findings = [*_source(source), *_time(context.host.now())]
    findings += [] if skew is None else _difference(skew)
    against = "not compared: no API server answers" if skew is None else f"{skew:+.1f} s against the API server"
    return Outcome(
        f"{source or 'clocksource unknown'}, {against}", tuple(findings), {"clocksource": source, "skew_s": skew}
    )


def _source(source: str) -> list[Finding]:
    if source in ("", *FAST):
        return []
    rule = SLOW_SOURCE if source in SLOW else UNUSUAL
    return [rule.found(f"the clocksource is {source}, wanted one of {', '.join(FAST)}", clocksource=source)]


def _time(now: float) -> list[Finding]:
    if now >= RELEASED.timestamp():
        return []
    said = dt.datetime.fromtimestamp(now, dt.UTC).isoformat(timespec="seconds")
    return [BEFORE_RELEASE.found(f"the clock says {said}, wanted {RELEASED.year} or later", now=now)]


def _skew(context: Context) -> float | None:
    """Return the least difference from the API server's clock that explains its Date, None without an answer."""
    host = context.host
    try:
        url = version_url(context)
        before = host.now()
        # Not verified: a clock that is off is one reason why a certificate is refused. Nothing secret is sent.
        date = host.https_get(url, ca=None, timeout_s=TRY_S).date
    except (Skip, HttpsError):
        return None
    if date is None:
        return None
    # The server wrote its Date, rounded down, at some moment between our two readings.
    least, most = before - (date + 1), host.now() - date
    return round(max(least, 0.0) + min(most, 0.0), 3)


def _difference(skew: float) -> list[Finding]:
    if abs(skew) <= SKEW_S:
        return []
    rule, wanted = (WRONG, WORST_SKEW_S) if abs(skew) > WORST_SKEW_S else (SKEWED, SKEW_S)
    way = "ahead of" if skew > 0 else "behind"
    return [
        rule.found(f"the clock is {abs(skew):.1f} s {way} the API server's, wanted {wanted:g} s or less", skew_s=skew)
    ]
