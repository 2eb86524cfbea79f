"""Checks of Acme's machines."""

from trainer_agent.check import Context, Outcome, Rule, Skip, check
from trainer_agent.errors import Action

WANTED = 3
LOW = Rule(
    "acme-low",
    when=f"there are fewer than {WANTED} widgets",
    hint="run `widgetctl add` on this node",
    action=Action.RESCHEDULE,
    source="Acme's manual, page 12",
)


@check("acme-widgets", rules=(LOW,), timeout_s=5)
def widgets(context: Context) -> Outcome:
    """Are there enough widgets?"""
    if not context.host.exists("/dev/widgets"):
        raise Skip("this machine has no widgets")
    found = len(context.host.names("/dev/widgets"))
    findings = (LOW.found(f"{found} widgets, wanted {WANTED}", found=found),) if found < WANTED else ()
    return Outcome(f"{found} widgets", findings, {"widgets": found, "expected_widgets": WANTED})


CATALOGUE = {"acme-widgets": "acme_checks:widgets"}
