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
PORTS = re.compile(r"(?P<count>\d+) x (?P<layer>\S+) (?P<rate>[\d.]+) Gb/sec")
# What was published (speeds.FILLED): from this size on the rate hardly depends on the latency, and so many nodes had
# it. Others may be slower and well: they only warn.
SATURATED, MOST_NODES = 512 << 20, 4
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
    """
    Return the rate of the RDMA ports of a node that carry NCCL together in Gb/s, None where it has none.

    NCCL takes the ports next to the GPUs. What is more than one for each GPU is storage's, unless NCCL_IB_HCA names
    every port: then the kind with the most ports counts, and of two with as many the slower. EFA has many for a GPU.
    """
    found = [match for kind in marks.get("rdma_ports") or () if (match := PORTS.match(str(kind)))]
    efa = sum(int(match["count"]) * float(match["rate"]) for match in found if match["layer"] == "EFA")
    others = [(int(match["count"]), float(match["rate"])) for match in found if match["layer"] != "EFA"]
    rates = [rate for count, rate in sorted(others, key=lambda kind: (-kind[0], kind[1])) for _ in range(count)]
    most = None if _named(marks) >= len(rates) else speeds.GPUS
    return efa + sum(rates[:most]) or None


def _named(marks: Mapping[str, Any]) -> int:
    """Return how many ports NCCL_IB_HCA names; a prefix such as `mlx5` is one, whatever it fits."""
    setting = str((marks.get("settings") or {}).get("NCCL_IB_HCA") or "")
    return 0 if setting.startswith("^") else sum(bool(entry.strip()) for entry in setting.strip("=").split(","))


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
    if severity is Severity.ERROR and (row["bytes"] < SATURATED or nodes > MOST_NODES):
        severity = Severity.WARNING
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
