"""Whether the collective of all ranks is as fast as its network cards are, and as the job was before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trainer_agent.errors import Severity
from trainer_agent.gang import rules, speeds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_agent.gang.course import Course

# As the check `consistency` has them: `8 x InfiniBand 400 Gb/sec (4X NDR)`.
PORTS = re.compile(r"(?P<count>\d+) x \S+ (?P<rate>[\d.]+) Gb/sec")
SOCKETS = "socket"  # what NCCL calls its network when it has no other


def judge(course: Course) -> None:
    """Write down what is slow in the collective of all ranks, and put what was expected beside what was measured."""
    collective = course.minutes.collective
    if not collective or not collective["passed"]:
        return
    marks: Mapping[str, Any] = next((node.hello["marks"] for node in course.roll.here), {})
    _transport(course, str(collective["transport"]), marks)
    for row in collective["rows"]:
        _against_network(course, row, marks, ranks=collective["ranks"])
    _against_history(course, collective)


def rdma_gbits(marks: Mapping[str, Any]) -> float | None:
    """Return the rate of all RDMA ports of a node together in Gb/s, None where it has none."""
    found = [PORTS.match(str(kind)) for kind in marks.get("rdma_ports") or ()]
    return sum(int(match["count"]) * float(match["rate"]) for match in found if match) or None


def _transport(course: Course, transport: str, marks: Mapping[str, Any]) -> None:
    if transport.lower() == SOCKETS and marks.get("rdma_ports"):
        text = f"NCCL uses sockets between the nodes, wanted RDMA: each has {', '.join(marks['rdma_ports'])}"
        course.charge("collective", rules.SOCKETS, text, transport=transport)


def _against_network(course: Course, row: dict[str, Any], marks: Mapping[str, Any], *, ranks: int) -> None:
    gpus = str(marks.get("gpus") or "")
    link = rdma_gbits(marks) if course.plan.backend == "nccl" else None
    nodes = course.plan.nnodes
    expected = speeds.expected_busbw_gbps(row["of"], row["bytes"], nodes=nodes, ranks=ranks, gpus=gpus, rdma_gbits=link)
    if expected is None:
        return
    row["expected_busbw_gbps"] = round(expected, 1)
    severity = speeds.against_expected(row["busbw_gbps"], expected)
    if severity:
        wanted = speeds.FAIL if severity is Severity.ERROR else speeds.WARN
        text = (
            f"{row['of']} of {row['bytes'] >> 20} MiB: {row['busbw_gbps']:.1f} GB/s of bus bandwidth, "
            f"wanted {wanted:.0%} of {expected:.1f} at least"
        )
        course.charge("collective", rules.SLOW, text, severity=severity, link_gbits=link)


def _against_history(course: Course, collective: Mapping[str, Any]) -> None:
    plan = course.plan
    rows = [
        speeds.Row(plan.backend, plan.nnodes, collective["ranks"], row["of"], row["bytes"], row["busbw_gbps"])
        for row in collective["rows"]
    ]
    for compared in speeds.against_history(rows, plan.history):
        if compared.severity:
            row = compared.row
            text = (
                f"{row.of} of {row.size >> 20} MiB: {row.busbw_gbps:.3f} GB/s, {compared.ratio:.0%} of what "
                f"earlier runs had, {compared.usual_gbps:.3f}; wanted {speeds.AS_BEFORE:.0%}"
            )
            course.charge("collective", rules.SLOWER_THAN_BEFORE, text)
