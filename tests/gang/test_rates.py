"""Whether the collective is as fast as its network cards are, and as the job was before."""

import pytest
from simulated import hello, plan

from trainer_agent.gang import speeds
from trainer_agent.gang.leader import Leader
from trainer_agent.gang.rates import judge, rdma_gbits

MIB = 1 << 20
MARKS = {"gpus": "8 x NVIDIA H200", "rdma_ports": ["8 x InfiniBand 400 Gb/sec (4X NDR)"]}


def judged(gbps, *, marks=None, transport="IB", backend="nccl", passed=True, history=(), size=512 * MIB, nodes=2):
    """Return what rank 0 says of the all-reduce of some nodes, and the row of it."""
    leader = Leader(plan(nodes, backend=backend, per_node=8, history=tuple(history)), lambda _: "")
    for rank in range(nodes):
        said = {"kind": "hello", "rank": rank, "born": 1.0, "sent": 0.0, "heard": 0.0, "now": 0.0}
        leader.hear(said | hello(rank, nodes, marks=MARKS if marks is None else marks), now=0.0, wall=0.0)
    row = {"of": "all-reduce", "bytes": size, "seconds": 0.1, "busbw_gbps": gbps}
    told = {
        "backend": backend,
        "ranks": 8 * nodes,
        "transport": transport,
        "passed": passed,
        "rows": [row],
        "message": "",
    }
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


NDR, HDR = "InfiniBand 400 Gb/sec (4X NDR)", "InfiniBand 200 Gb/sec (4X HDR)"
ALL = ",".join(f"mlx5_{number}" for number in range(12))


@pytest.mark.parametrize(
    "ports,hca,gbits",
    [
        ([f"12 x {NDR}"], None, 3200.0),
        ([f"8 x {NDR}", f"4 x {HDR}", "2 x Ethernet 25 Gb/sec (1X EDR)"], None, 3200.0),
        ([f"4 x {NDR}", f"8 x {HDR}"], None, 1600.0),
        ([f"6 x {NDR}", f"6 x {HDR}"], None, 6 * 200.0 + 2 * 400.0),
        ([f"12 x {NDR}"], "mlx5", 3200.0),
        ([f"12 x {NDR}"], "^mlx5_12", 3200.0),
        ([f"12 x {NDR}"], ALL, 4800.0),
        ([f"12 x {NDR}"], f"={ALL}", 4800.0),
        (["32 x EFA 100 Gb/sec (4X EDR)"], None, 3200.0),
    ],
)
def test_ports_of_the_storage_carry_no_nccl(ports, hca, gbits):
    """As many as GPUs count, unless NCCL_IB_HCA names each; Amazon's machines have four for a GPU and use them all."""
    settings = {} if hca is None else {"NCCL_IB_HCA": hca}

    assert gbits == rdma_gbits({"rdma_ports": ports, "settings": settings})


def test_a_node_with_storage_ports_reaches_what_was_published():
    """Eight ports of 400 Gb/s for eight GPUs, and four for storage."""
    marks = MARKS | {"rdma_ports": [f"12 x {NDR}"]}

    assert [] == told(327.0, marks=marks)


@pytest.mark.parametrize(
    "nodes,size,severity",
    [(2, 512, "error"), (4, 16 * 1024, "error"), (4, 511, "warning"), (2, 64, "warning"), (5, 16 * 1024, "warning")],
)
def test_what_nobody_has_published_only_warns(nodes, size, severity):
    """Small buffers, whose rate is the latency's, and more nodes than anybody has measured."""
    findings = [(code, found) for code, found, _ in told(10.0, nodes=nodes, size=size * MIB)]

    assert [("collective-slow", severity)] == findings


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
