"""Whether all nodes compute together; `trainer_agent.gang` does the work, on all of them at once."""

from __future__ import annotations

from preflight_checks.roll_call import nobody
from trainer_agent.check import Context, Outcome, Skip, check
from trainer_agent.gang.rules import COLLECTIVE


@check("collective", rules=COLLECTIVE)
def collective(context: Context) -> Outcome:
    """Do all ranks of the job get the right numbers from each other, at a good rate, and if not, whose fault is it?"""
    raise Skip(nobody(context))
