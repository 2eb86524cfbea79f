"""Whether the collective is as fast as its network cards are, and as the job was before."""

import pytest
from simulated import hello, plan

from trainer_agent.gang import speeds
from trainer_agent.gang.leader import Leader
from trainer_agent.gang.rates import judge, rdma_gbits

MIB = 1 << 20
MARKS = {"gpus": "8 x NVIDIA H200", "rdma_ports": ["8 x InfiniBand 400 Gb/sec (4X NDR)"]}


def judged(gbps, *, marks=None, transport="IB", backend="nccl", passed=True, history=(), size=512 * MIB):
    """Return what rank 0 says of the all-reduce of two nodes, and the row of it."""
    leader = Leader(plan(2, backend=backend, per_node=8, history=tuple(history)), lambda _: "")
    for rank in range(2):
        said = {"kind": "hello", "rank": rank, "born": 1.0, "now": 0.0}
        leader.hear(said | hello(rank, 2, marks=MARKS if marks is None else marks), now=0.0, wall=0.0)
    row = {"of": "all-reduce", "bytes": size, "seconds": 0.1, "busbw_gbps": gbps}
    told = {"backend": backend, "ranks": 16, "transport": transport, "passed": passed, "rows": [row], "message": ""}
    leader.minutes.collective = told
    judge(leader)
    return [charge.finding for charge in leader.minutes.charges], row


def told(*args, **kwargs):
    return [(finding.code, str(finding.severity), finding.message) for finding in judged(*args, **kwargs)[0]]


@pytest.mark.parametrize(
    "ports,gbits",
    [
        (["8 x InfiniBand 400 Gb/sec (4X NDR)"], 3200.0),
        (["2 x InfiniBand 200 Gb/sec (4X HDR)", "1 x Ethernet 25 Gb/sec (1X EDR)"], 425.0),
        (["4 x Ethernet 2.5 Gb/sec (1X SDR)"], 10.0),
        (["something else"], None),
        ([], None),
        (None, None),
    ],
)
def test_the_rate_of_all_ports_together(ports, gbits):
    assert gbits == rdma_gbits({"rdma_ports": ports})


@pytest.mark.parametrize(
    "gbps,severity,wanted",
    [
        (327.0, None, ""),
        (262.0, None, ""),
        (261.0, "warning", "80%"),
        (197.0, "warning", "80%"),
        (196.0, "error", "60%"),
    ],
)
def test_against_the_network(gbps, severity, wanted):
    text = f"all-reduce of 512 MiB: {gbps:.1f} GB/s of bus bandwidth, wanted {wanted} of 327.0 at least"

    assert ([("collective-slow", severity, text)] if severity else []) == told(gbps)
    assert 327.0 == judged(gbps)[1]["expected_busbw_gbps"]


@pytest.mark.parametrize(
    "other",
    [
        {"backend": "gloo"},
        {"marks": {"gpus": "8 x NVIDIA H200"}},
        {"marks": MARKS | {"gpus": "4 x NVIDIA L4"}},
        {"size": MIB},
    ],
)
def test_nothing_is_expected_where_nobody_has_measured(other):
    findings, row = judged(0.001, **other)

    assert [] == findings
    assert "expected_busbw_gbps" not in row


@pytest.mark.parametrize(
    "transport,ports,warned", [("Socket", 1, True), ("socket", 1, True), ("IB", 1, False), ("Socket", 0, False)]
)
def test_sockets_beside_rdma(transport, ports, warned):
    marks = {"rdma_ports": ["8 x InfiniBand 400 Gb/sec (4X NDR)"] * ports}
    text = "NCCL uses sockets between the nodes, wanted RDMA: each has 8 x InfiniBand 400 Gb/sec (4X NDR)"
    expected = [("collective-over-sockets", "warning", text)] if warned else []

    assert expected == told(1.0, marks=marks, transport=transport)


def test_against_the_history():
    def earlier(gbps, *, size=512 * MIB):
        return [speeds.Row("nccl", 2, 16, "all-reduce", size, gbps)] * 3

    text = "all-reduce of 512 MiB: 59.000 GB/s, 59% of what earlier runs had, 100.000; wanted 60%"
    assert [("slower-than-before", "warning", text)] == told(59.0, marks={}, history=earlier(100.0))
    assert [] == told(60.0, marks={}, history=earlier(100.0))
    assert [] == told(1.0, marks={}, history=earlier(100.0, size=MIB))
    assert [] == told(1.0, marks={}, history=earlier(100.0)[:2])


def test_a_collective_that_failed_is_not_judged():
    assert [] == told(0.001, passed=False)
    leader = Leader(plan(2), lambda _: "")
    judge(leader)
    assert [] == leader.minutes.charges
