"""XIDs: what the driver reports of GPUs while a check runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight_checks._gpus import found_on
from trainer_agent.check import Rule
from trainer_agent.errors import Action, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight_checks._gpus import Gpu
    from trainer_agent.errors import Finding

OF_APPLICATIONS = frozenset({13, 31, 43, 45, 63, 68, 92, 109})

CRITICAL = Rule(
    "gpu-xid",
    when="the driver reports an XID while the check runs, other than those that applications cause",
    hint="cordon this node and look the XID up in NVIDIA's catalogue; `dmesg | grep -i xid` has its context",
    action=Action.RESCHEDULE,
    source="NVML's events",
)
APPLICATION = Rule(
    "gpu-xid-application",
    when="the driver reports XID 13, 31, 43, 45, 63, 68, 92 or 109 while the check runs",
    hint="look for who uses this GPU: applications cause most of these",
    severity=Severity.WARNING,
    source="gcm",
)
XIDS = (CRITICAL, APPLICATION)


def judge(xids: Iterable[tuple[int, int]], gpus: Mapping[int, Gpu]) -> list[Finding]:
    """Return a finding for each (index of the GPU, XID)."""
    findings = []
    for index, xid in xids:
        rule = APPLICATION if xid in OF_APPLICATIONS else CRITICAL
        text = f"XID {xid} while this check ran, wanted none"
        if index in gpus:
            findings += found_on(rule, [(gpus[index], text, {"xid": xid})])
        else:
            findings.append(rule.found(f"an unknown GPU: {text}", xid=xid))
    return findings
