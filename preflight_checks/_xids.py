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

# Numbers by what NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors") says of them; a
# number in none of these is a fault, also one that is new.
OF_APPLICATIONS = frozenset({13, 31, 43, 45, 63, 68, 92, 109})
# A timeout of a context switch (109). Applications cause it, too, but not the products and copies of our own probes;
# NVIDIA's catalogue asks for a reset, EKS for another node, k8s-device-plugin and gcm ignore it.
OF_FOREIGN_WORK = 109
# NVLink, from Blackwell on: which of them are fatal is said by a part of the text that NVML does not hand on.
OF_NVLINK = frozenset(range(144, 151))
# To be ignored, or only informing. 154 says that the recovery action changed, and to which one is read by itself.
INFORMING = frozenset({14, 37, 38, 44, 66, 67, 93, 106, 107, 108, 121, 137, 141, 152, 153, 154, 157, *range(160, 166)})

CRITICAL = Rule(
    "gpu-xid",
    when="the driver reports an XID while the check runs, other than those that the next three findings have",
    hint="cordon this node and look the XID up in NVIDIA's catalogue; `dmesg | grep -i xid` has its context",
    action=Action.RESCHEDULE,
    source="NVML's events",
)
APPLICATION = Rule(
    "gpu-xid-application",
    when="the driver reports XID 13, 31, 43, 45, 63, 68, 92 or 109 while the check runs; 109 not while it works itself",
    hint="look for who uses this GPU: applications cause most of these",
    severity=Severity.WARNING,
    source="gcm",
)
NVLINK = Rule(
    "gpu-xid-nvlink",
    when="the driver reports one of XID 144 to 150 while the check runs: errors of NVLink, fatal ones and others",
    hint="`dmesg | grep -i xid` on this node says whether it was fatal; cordon the node then",
    severity=Severity.WARNING,
    source="NVIDIA's catalogue of XIDs: the number alone does not tell",
)
HARMLESS = Rule(
    "gpu-xid-harmless",
    when="the driver reports XID 14, 37, 38, 44, 66, 67, 93, 106 to 108, 121, 137, 141, 152 to 154, 157 or 160 to 165 "
    "while the check runs",
    hint="nothing: NVIDIA's catalogue says to ignore it, or that it only informs",
    severity=Severity.INFO,
    source="NVIDIA's catalogue of XIDs",
)
XIDS = (CRITICAL, APPLICATION, NVLINK, HARMLESS)
KINDS = ((OF_APPLICATIONS, APPLICATION), (OF_NVLINK, NVLINK), (INFORMING, HARMLESS))


def judge(xids: Iterable[tuple[int, int]], gpus: Mapping[int, Gpu], *, working: bool = False) -> list[Finding]:
    """
    Return a finding for each (index of the GPU, XID) of these GPUs, and of one whose index nobody knows (-1).

    Args:
        working: whether the GPUs do our own work, so that an application's mistake is unlikely.
    """
    findings = []
    for index, xid in xids:
        rule = next((rule for numbers, rule in KINDS if xid in numbers), CRITICAL)
        rule = CRITICAL if working and xid == OF_FOREIGN_WORK else rule
        text = f"XID {xid} while this check ran, wanted none"
        if index in gpus:
            findings += found_on(rule, [(gpus[index], text, {"xid": xid})])
        elif index < 0:
            findings.append(rule.found(f"an unknown GPU: {text}", xid=xid))
    return findings
