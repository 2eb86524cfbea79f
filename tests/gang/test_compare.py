"""What differs between the nodes of a job, and whether it matters."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.check import Rule
from trainer_agent.errors import Action, Severity
from trainer_agent.gang.compare import (
    RULES,
    TABLE,
    Difference,
    SharedHost,
    differences,
    findings,
    hosts,
    mark_of,
    shared_hosts,
)

# All that a node with GPUs says, from the profile standard on.
HOST = {"hostname": "pod-0", "boot_id": "6a1f0e9e", "kernel": "6.8.0", "os": "Ubuntu 24.04.1", "arch": "x86_64"}
GPUS = {"gpus": "8 x NVIDIA H200", "gpu_count": 8, "gpu_memory_bytes": [150754820096], "mig": 0, "ecc": 8}
DRIVER = {"driver": "570.86.15", "cuda_driver": "12.8", "vbios": ["96.00"], "cluster_uuid": "", "clique": None}
NICS = {"rdma_devices": ["mlx5_0", "mlx5_1"], "rdma_ports": ["2 x 400 Gb/sec"]}
NETWORK = {"rdma_mtu_bytes": [4092], "rdma_firmware": ["28.39"]}
SOFTWARE = {"python": "3.11.9", "torch": "2.7.1", "torch_cuda": "12.6", "nccl": "2.26.2", "cudnn": "9.5.1"}
LOADED = {"nccl_preloaded": None, "nccl_preloaded_path": None, "nccl_on_the_way": None, "nccl_on_the_way_path": None}
SET = {"settings": {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "eth0"}, "settings_sha256": "44136fa3", "not_read": {}}
SHAPE = {"agent": "0.1.0", "processes": 8, "nnodes": 4, "nproc": 8, "checks": ["cuda", "gemm", "shm"]}
NODE = HOST | GPUS | DRIVER | NICS | NETWORK | SOFTWARE | LOADED | SET | SHAPE
NAMES = {rank: f"pod-{rank}" for rank in range(3)}


def gang(*changes, count=4):
    """Return the marks of some nodes; the changes are those of the last ones."""
    start = count - len(changes)
    return {rank: NODE | (changes[rank - start] if rank >= start else {}) for rank in range(count)}


def told(marks):
    """Return the messages on all differences."""
    return [finding.message for finding in findings(differences(marks), [], NAMES)]


def rows(marks):
    return [(str(each.severity), each.key, [value for value, _ in each.values]) for each in differences(marks)]


def test_nodes_that_are_alike_do_not_differ():
    """Whatever tells nodes apart, or is only about one of them, is none of it."""
    own = {"hostname": "b", "boot_id": "c", "settings_sha256": "d", "not_read": {"gpus": "e"}, "nccl_preloaded": None}

    assert [] == differences(gang(own))
    assert () == findings([], [], {})


def test_a_difference_names_its_values_and_the_minority():
    found = differences(gang({"torch": "2.6.0"}))

    values = (("2.7.1", (0, 1, 2)), ("2.6.0", (3,)))
    assert [Difference("torch", Severity.ERROR, values, minority=(3,))] == found
    listed = [{"value": "2.7.1", "ranks": [0, 1, 2]}, {"value": "2.6.0", "ranks": [3]}]
    assert {"key": "torch", "severity": "error", "values": listed, "minority": [3]} == found[0].as_dict()


@pytest.mark.parametrize(
    "versions,values,minority",
    [
        ("abab", [("a", (0, 2)), ("b", (1, 3))], ()),
        ("bbaa", [("b", (0, 1)), ("a", (2, 3))], ()),
        ("abc", [("a", (0,)), ("b", (1,)), ("c", (2,))], ()),
        ("abccbc", [("c", (2, 3, 5)), ("b", (1, 4)), ("a", (0,))], (0, 1, 4)),
        ("aabbc", [("a", (0, 1)), ("b", (2, 3)), ("c", (4,))], ()),
    ],
)
def test_where_two_are_equally_frequent_nobody_is_in_the_minority(versions, values, minority):
    found = differences({rank: {"driver": version} for rank, version in enumerate(versions)})

    assert [Difference("driver", Severity.WARNING, tuple(values), minority)] == found


@pytest.mark.parametrize("unknown", [{}, dict.fromkeys(NODE), dict.fromkeys(NODE, ""), {key: [] for key in NODE}])
def test_what_is_not_known_is_no_difference(unknown):
    """Lists of ports and checks that are empty are known: there are none."""
    marks = {0: NODE, 1: {**unknown, "rdma_ports": None, "checks": None}}

    assert [] == differences(marks)


def test_the_order_of_the_nodes_says_nothing():
    marks = gang({"torch": "2.6.0"}, {"driver": "535.1"})

    assert differences(marks) == differences(dict(reversed(marks.items())))


SLIGHTLY = "nodes-differ-slightly"


@pytest.mark.parametrize(
    "change,row",
    [
        ({"nnodes": 3}, ("error", "nnodes", [4, 3])),
        ({"nproc": 4}, ("error", "nproc", [8, 4])),
        ({"nproc": None, "processes": 4}, ("error", "nproc", [8, 4])),
        ({"gpus": "8 x NVIDIA L4"}, ("error", "gpus", ["NVIDIA H200", "NVIDIA L4"])),
        ({"mig": 8}, ("error", "mig", ["no GPU", "all GPUs"])),
        ({"mig": 3}, ("error", "mig", ["no GPU", "3 of 8 GPUs"])),
        ({"torch_cuda": "12.8"}, ("error", "torch_cuda", ["12.6", "12.8"])),
        ({"nccl": "2.27.3"}, ("error", "nccl", ["2.26.2", "2.27.3"])),
        ({"agent": "0.2.0"}, ("warning", "agent", ["0.1.0", "0.2.0"])),
        ({"python": "3.12.0"}, ("warning", "python", ["3.11.9", "3.12.0"])),
        ({"cudnn": "9.1.0.70"}, ("warning", "cudnn", ["9.5.1", "9.1.0.70"])),
        ({"checks": ["cuda"]}, ("warning", "checks", ["all", "all but gemm, shm"])),
        ({"driver": "535.1"}, ("warning", "driver", ["570.86.15", "535.1"])),
        ({"cuda_driver": "12.2"}, ("info", "cuda_driver", ["12.8", "12.2"])),
        ({"vbios": ["a", "b"]}, ("warning", "vbios", ["96.00", "a, b"])),
        ({"ecc": 0}, ("warning", "ecc", ["all GPUs", "no GPU"])),
        ({"gpu_memory_bytes": [64 * 2**30]}, ("warning", "gpu_memory_bytes", ["140 GiB", "64 GiB"])),
        ({"arch": "aarch64"}, ("warning", "arch", ["x86_64", "aarch64"])),
        ({"rdma_ports": []}, ("warning", "rdma_ports", ["2 x 400 Gb/sec", "none"])),
        ({"rdma_mtu_bytes": [1500, 4092]}, ("warning", "rdma_mtu_bytes", ["4092", "1500, 4092"])),
        ({"rdma_devices": ["mlx5_7"]}, ("info", "rdma_devices", ["mlx5_0, mlx5_1", "mlx5_7"])),
        ({"rdma_firmware": ["28.40"]}, ("info", "rdma_firmware", ["28.39", "28.40"])),
        ({"kernel": "6.5"}, ("info", "kernel", ["6.8.0", "6.5"])),
        ({"os": "Debian"}, ("info", "os", ["Ubuntu 24.04.1", "Debian"])),
        ({"settings": {"NCCL_ALGO": "Ring"}}, ("info", "settings.NCCL_SOCKET_IFNAME", ["eth0", "not set"])),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_each_difference_has_its_severity(change, row):
    assert [row] == rows(gang(change))
    found = findings(differences(gang(change)), [], NAMES)[0]
    code = {"nnodes": "shape-differs", "nproc": "shape-differs"}.get(row[1], "nodes-differ")
    assert (code if row[0] == "error" else SLIGHTLY, row[0]) == (found.code, str(found.severity))
    assert (Action.STOP if row[0] == "error" else Action.CONTINUE) == found.action


@pytest.mark.parametrize("key,values", [("cluster_uuid", ("a", "b")), ("clique", (0, 1)), ("nccl_on_the_way", "ab")])
def test_several_racks_are_no_fault(key, values):
    assert [("info", key, list(values))] == rows({rank: {key: value} for rank, value in enumerate(values)})


def test_fewer_gpus_are_one_difference():
    """Neither the model, nor how many have ECC, is another."""
    change = {"gpus": "7 x NVIDIA H200", "gpu_count": 7, "ecc": 7, "vbios": ["96.00"]}

    assert [("error", "gpu_count", [8, 7])] == rows(gang(change))


def test_models_are_compared_without_their_numbers():
    mixed = [{"gpus": "1 x NVIDIA L4, 7 x NVIDIA H200"}, {"gpus": "2 x NVIDIA L4, 6 x NVIDIA H200"}]

    assert [] == differences(dict(enumerate(mixed)))


@pytest.mark.parametrize(
    "change,found",
    [
        ({"nccl_preloaded": "2.23.4", "nccl_preloaded_path": "/opt/libnccl.so.2"}, ["2.26.2", "2.23.4"]),
        ({"nccl": "2.21.5", "nccl_preloaded": "2.26.2", "nccl_preloaded_path": "/opt/libnccl.so.2"}, []),
        ({"nccl": "2.21.5", "nccl_preloaded": None, "nccl_preloaded_path": "/opt/libnccl.so.2"}, []),
        ({"nccl": "2.26.2.post1"}, []),
        ({"nccl": None}, []),
    ],
    ids=["preloaded", "preloaded the same", "preloaded and not known", "the fourth number", "not known"],
)
def test_the_nccl_that_will_be_loaded_counts(change, found):
    assert found == [value for _, _, values in rows(gang(change)) for value in values]


def settings(*each):
    return {rank: {"settings": values} for rank, values in enumerate(each)}


ALIKE = """
NCCL_ALGO NCCL_PROTO NCCL_NET NCCL_BUFFSIZE NCCL_LL128_BUFFSIZE NCCL_NTHREADS NCCL_MIN_NCHANNELS NCCL_MAX_CTAS
NCCL_P2P_LL_THRESHOLD NCCL_NET_OVERHEAD GLOO_DEVICE_TRANSPORT
"""
LOCAL = """
NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME NCCL_OOB_NET_IFNAME NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_TOPO_FILE NCCL_CONF_FILE
NCCL_TOPO_DUMP_FILE NCCL_GRAPH_FILE NCCL_DEBUG NCCL_DEBUG_SUBSYS TORCH_NCCL_DEBUG_INFO_TEMP_FILE NCCL_RAS_ADDR
GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY
"""
OTHER = """
NCCL_CROSS_NIC NCCL_P2P_DISABLE NCCL_NET_PLUGIN NCCL_IB_TC NCCL_NEW_ONE NCCL_NETS NCCL_ALGORITHM
TORCH_NCCL_BLOCKING_WAIT GLOO_NEW_ONE
"""


@pytest.mark.parametrize(
    "severity,name",
    [
        (severity, name)
        for severity, names in (("error", ALIKE), ("info", LOCAL), ("warning", OTHER))
        for name in names.split()
    ],
)
def test_settings_are_compared_one_by_one(severity, name):
    assert [(severity, f"settings.{name}", ["1", "2"])] == rows(settings({name: "1"}, {name: "2"}))
    assert [(severity, f"settings.{name}", ["1", "not set"])] == rows(settings({name: "1"}, {}))


@pytest.mark.parametrize("name", ["NCCL_IB_DISABLE", "NCCL_COLLNET_ENABLE"])
def test_what_has_a_default_is_compared_with_it(name):
    assert [("error", f"settings.{name}", ["0", "1"])] == rows(settings({}, {name: "1"}))


def test_the_host_id_of_nccl_is_meant_to_differ():
    assert [] == differences(settings({"NCCL_HOSTID": "a"}, {"NCCL_HOSTID": "b"}))


@pytest.mark.parametrize(
    "one,other",
    [
        ({"NCCL_ALGO": "Ring,Tree"}, {"NCCL_ALGO": "ring,tree "}),
        ({"NCCL_ALGO": ""}, {}),
        ({"NCCL_DEBUG": " "}, {}),
        ({"NCCL_IB_DISABLE": "0"}, {}),
        ({"NCCL_COLLNET_ENABLE": "0"}, {}),
    ],
)
def test_settings_that_mean_the_same_are_alike(one, other):
    """NCCL's names of algorithms are not case sensitive, and it takes an empty value for none."""
    assert [] == differences(settings(one, other))


def test_the_case_of_a_file_matters():
    assert ["/A", "/a"] == rows(settings({"NCCL_TOPO_FILE": "/A"}, {"NCCL_TOPO_FILE": "/a"}))[0][2]


def test_settings_come_in_order_after_everything_else():
    marks = {n: {"settings": dict.fromkeys(["NCCL_C", "NCCL_A", "NCCL_B"], f"{n}"), "os": f"{n}"} for n in range(2)}

    assert ["os", "settings.NCCL_A", "settings.NCCL_B", "settings.NCCL_C"] == [key for _, key, _ in rows(marks)]


OLD, OLDER, TREE = {"torch": "2.6.0"}, {"torch": "2.5.0"}, {"NCCL_ALGO": "Tree"}


@pytest.mark.parametrize(
    "marks,message",
    [
        (gang(OLD), "node 3 has torch 2.6.0, wanted 2.7.1 as the 3 others"),
        (gang(OLD, OLD, count=5), "node 3, node 4 have torch 2.6.0, wanted 2.7.1 as the 3 others"),
        (gang(OLD, OLDER), "node 2 (pod-2) has torch 2.6.0, node 3 has torch 2.5.0, wanted 2.7.1 as the 2 others"),
        (
            gang(OLD, count=2),
            "torch differs: 2.7.1 on node 0 (pod-0), 2.6.0 on node 1 (pod-1); wanted the same everywhere",
        ),
        (settings(TREE, TREE, {}), "node 2 (pod-2) has NCCL_ALGO not set, wanted tree as the 2 others"),
        (gang({"checks": ["cuda"]}), "node 3 has checks all but gemm, shm, wanted all as the 3 others"),
        (gang({"kernel": "6.5"}), "node 3 has kernel 6.5, not 6.8.0 as the 3 others"),
        (gang({"kernel": "6.5"}, count=2), "kernel differs: 6.8.0 on node 0 (pod-0), 6.5 on node 1 (pod-1)"),
        (gang({"mig": 8}), "node 3 has MIG on all GPUs, wanted no GPU as the 3 others"),
    ],
)
def test_the_message_says_who_has_what(marks, message):
    assert [message] == told(marks)


@pytest.mark.parametrize("count,more", [(8, ""), (100, " and 92 more")])
def test_of_many_nodes_a_message_names_eight(count, more):
    marks = {rank: {"torch": "2.6.0" if rank < count else "2.7.1"} for rank in range(300)}

    names = ", ".join(f"node {rank} (n{rank})" for rank in range(8))
    (found,) = findings(differences(marks), [], {rank: f"n{rank}" for rank in marks})
    assert f"{names}{more} have torch 2.6.0, wanted 2.7.1 as the {300 - count} others" == found.message


def test_of_a_tie_each_side_is_named():
    marks = {rank: {"torch": "2.6.0" if rank < 150 else "2.7.1"} for rank in range(10, 290)}

    low, high = (", ".join(f"node {first + n}" for n in range(4)) for first in (10, 150))
    expected = f"2.6.0 on {low} and 136 more, 2.7.1 on {high} and 136 more"
    assert [f"torch differs: {expected}; wanted the same everywhere"] == told(marks)


@pytest.mark.parametrize("count,more", [(8, ""), (9, " and 1 more values"), (300, " and 292 more values")])
def test_of_many_values_a_message_has_eight(count, more):
    marks = {10 + rank: {"driver": f"v{rank // 2}"} for rank in range(2 * count)}

    expected = ", ".join(f"v{n} on node {10 + 2 * n} and 1 more" for n in range(8))
    assert [f"driver differs: {expected}{more}; wanted the same everywhere"] == told(marks)


def test_the_evidence_has_the_values_and_the_reason():
    found = findings(differences(gang({"nnodes": 3})), [], NAMES)

    values = [{"value": 4, "nodes": 3}, {"value": 3, "nodes": 1}]
    why = "everybody waits for as many as it was told"
    assert {"key": "nnodes", "values": values, "ranks": [3], "why": why} == found[0].evidence


def test_the_worst_comes_first():
    marks = gang({"kernel": "6.5", "driver": "535.1", "torch": "2.6.0"})

    found = findings(differences(marks), [SharedHost((0, 1), Severity.WARNING)], NAMES)

    assert ["torch", "driver", "boot_id", "kernel"] == [each.evidence["key"] for each in found]


BOOTS = {0: {"boot_id": "a"}, 1: {"boot_id": "b", "gpu_count": 4}, 2: {"boot_id": "a"}, 3: {}, 4: {"boot_id": ""}}


@pytest.mark.parametrize(
    "marks,found",
    [
        (BOOTS, [SharedHost((0, 2), Severity.INFO)]),
        (
            BOOTS | {5: {"boot_id": "b", "gpu_count": 0}},
            [SharedHost((0, 2), Severity.INFO), SharedHost((1, 5), "warning")],
        ),
        ({3: {"boot_id": "a"}, 1: {"boot_id": "a"}}, [SharedHost((1, 3), Severity.INFO)]),
        ({0: {"boot_id": "a"}, 1: {"boot_id": "b"}}, []),
        ({0: {}, 1: {}, 2: {"boot_id": None}, 3: {"boot_id": None}}, []),
    ],
)
def test_nodes_that_share_a_host_are_found(marks, found):
    assert found == shared_hosts(marks)


def test_the_hosts_are_those_that_are_known():
    assert {0: "a", 1: "b", 2: "a"} == hosts(BOOTS)


@pytest.mark.parametrize("severity", ["warning", "info"])
def test_a_shared_host_is_never_a_failure(severity):
    (found,) = findings([], [SharedHost((0, 2), Severity(severity))], NAMES)

    message = "node 0 (pod-0), node 2 (pod-2) are one machine, wanted a machine for each node"
    assert ("nodes-share-host", severity, message) == (found.code, str(found.severity), found.message)
    assert ({"key": "boot_id", "hosts": [[0, 2]]}, Action.CONTINUE) == (found.evidence, found.action)


def test_many_shared_hosts_are_one_finding():
    info, warning = Severity.INFO, Severity.WARNING
    shared = [SharedHost((n, n + 100, n + 200), warning if n == 30 else info) for n in range(10, 50)]

    (found,) = findings([], shared, {})

    told = ", ".join(f"node {n}, node {n + 100} and 1 more are one machine" for n in range(10, 14))
    assert f"{told} and 36 more, wanted a machine for each node" == found.message
    assert (warning, [list(each.ranks) for each in shared]) == (found.severity, found.evidence["hosts"])


def test_the_rules_are_complete():
    """Every code that can be found is declared; those that fail ask to stop, as another node would not help."""
    assert ["shape-differs", "nodes-differ", SLIGHTLY, "nodes-share-host"] == [rule.code for rule in RULES]
    assert {Action.STOP} == {rule.action for rule in RULES if rule.severity is Severity.ERROR}
    assert all(isinstance(rule, Rule) and rule.source and rule.hint for rule in RULES)
    assert all(mark_of(key).why for key in (*TABLE, "settings.NCCL_ALGO", "settings.NCCL_DEBUG", "settings.NCCL_X"))


VALUES = st.sampled_from(["", "a", "b", "2.1", None, 0, 1, 8])
MARKS = st.fixed_dictionaries(
    {},
    optional={
        **{key: VALUES for key in TABLE if key not in ("gpu_memory_bytes", "checks")},
        "gpu_memory_bytes": st.none() | st.lists(st.integers(0, 2**40), max_size=2),
        "checks": st.none() | st.lists(st.sampled_from("abc")),
        "boot_id": VALUES,
        "settings": st.none() | st.dictionaries(st.sampled_from(["NCCL_ALGO", "NCCL_IB_HCA", "GLOO_X"]), VALUES),
    },
)


@given(st.dictionaries(st.integers(0, 4095), MARKS, max_size=8))
def test_every_difference_holds(marks):
    """It has several values with ranks of their own, the most frequent first, and the others' are the minority."""
    for each in differences(marks):
        ranks = [rank for _, some in each.values for rank in some]
        counts = [len(some) for _, some in each.values]
        assert sorted(set(ranks) & set(marks)) == sorted(ranks)
        assert counts == sorted(counts, reverse=True)
        assert min(counts) > 0
        assert (sorted(ranks[counts[0] :]) if counts[0] > counts[1] else []) == list(each.minority)


@given(st.dictionaries(st.integers(0, 4095), MARKS, max_size=8))
def test_findings_are_json_and_one_for_each_difference(marks):
    different, shared = differences(marks), shared_hosts(marks)
    found = findings(different, shared, {})

    assert len(different) + bool(shared) == len(found)
    json.dumps([each.as_dict() for each in different] + [each.evidence for each in found], allow_nan=False)


@given(st.dictionaries(st.integers(0, 4095), MARKS, max_size=8), st.data())
def test_a_node_that_knows_nothing_changes_nothing(marks, data):
    rank = data.draw(st.integers(5000, 6000))

    assert differences(marks) == differences(marks | {rank: {}})


@given(MARKS, st.integers(1, 6))
def test_equal_nodes_never_differ(mark, count):
    assert [] == differences(dict.fromkeys(range(count), mark))
