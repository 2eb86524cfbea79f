"""gang_words: the gang as a few lines, whatever its size."""

import json

import pytest

from trainer_agent.formats.gang_section import gang_of
from trainer_agent.formats.gang_words import affinity, blame, lines, nodes, ranks, some

LINES = """\
gang of 4: node 2 (job1-node-0-2) never arrived: its name does not resolve
  blame: peer - node 2 (job1-node-0-2), gpu GPU-00000005-aaaa-bbbb-cccc-dddddddddddd of node 1 (job1-node-0-1)
  missing: node 2 (job1-node-0-2): its name does not resolve
  undetermined: nodes 1,3: they failed with each other only
  avoid hosts: gpu-18, gpu-20
  avoid GPUs: GPU-00000005-aaaa-bbbb-cccc-dddddddddddd
  phases: roll-call 30.0 s, consistency 0.0 s"""


def told(gang, **changes):
    return lines(gang_of({"gang": {**gang, **changes}}))


def test_the_whole_text(gang):
    assert LINES.splitlines() == told(gang)


def test_when_all_is_well_one_line_is_enough(well):
    line = (
        "gang of 4: all nodes ready in 1.5 s, collective gloo 3 ranks over tcp passed, "
        "2 of 2 pair tests passed, 1.5 s in all"
    )
    assert [line] == told(well)
    assert ["gang of 4: all nodes ready in 1.5 s"] == told(well, collective=None, pairs=[], phases=[])


def test_a_pod_that_was_replaced_is_nothing_wrong(well):
    nodes = [*well["nodes"], {**well["nodes"][1], "state": "superseded"}]
    assert ["gang of 4: 1 superseded, 4 ready"] == told(well, nodes=nodes, collective=None, pairs=[], phases=[])


def test_a_warning_blames_nobody(well):
    warned = told(well, verdict="warn", summary="drivers differ")

    assert ["gang of 4: drivers differ", "  phases: roll-call 1.5 s, consistency 0.0 s"] == warned


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"blame": "none"}, "none"),
        ({"blame": "self", "suspects": []}, "self"),
        ({"blame": "undetermined"}, "undetermined - nodes 1,3"),
        (
            {"suspects": [{"kind": "link", "id": "a - b", "node_rank": 0, "reason": ""}], "blame": "peer"},
            "peer - link a - b",
        ),
        (
            {"suspects": [{"kind": "nic", "id": "mlx5_0:1", "node_rank": 3, "reason": ""}], "blame": "self"},
            "self - nic mlx5_0:1 of node 3 (job1-node-0-3)",
        ),
    ],
)
def test_who_is_to_blame(gang, changes, expected):
    assert expected == blame(gang_of({"gang": {**gang, **changes}}))


def test_a_node_without_a_name_is_its_rank(gang):
    gang["nodes"][2] |= {"hostname": "", "note": ""}
    gang["suspects"] = [{"kind": "node", "id": "node 2", "node_rank": 2, "reason": "it never arrived"}]

    assert ["  blame: peer - node 2", "  missing: node 2"] == told(gang)[1:3]


def test_hundreds_of_missing_nodes_are_ten_lines(gang):
    gang["nodes"] = [{**gang["nodes"][2], "rank": n, "hostname": f"n{n}"} for n in range(300)]
    gang["suspects"] = [{"kind": "node", "id": f"n{n}", "node_rank": n, "reason": ""} for n in range(300)]
    gang["undetermined"] = [{"ranks": [n, n + 1], "reason": "r"} for n in range(300)]

    text = told(gang)

    missing = [f"  missing: node {n} (n{n}): its name does not resolve" for n in range(10)]
    assert [*missing, "  and 290 more not ready"] == text[2:13]
    assert ["  undetermined: nodes 9,10: r", "  and 290 more"] == text[22:24]
    assert text[1].endswith("node 9 (n9) and 290 more")


@pytest.mark.parametrize(
    "given, expected",
    [
        ([], ""),
        ([3], "3"),
        ([5, 2, 1, 0, 2], "0-2,5"),
        ([4, 5], "4,5"),
        (range(4096), "0-4095"),
        (range(0, 200, 2), ",".join(str(n) for n in range(0, 80, 2)) + " and 60 more"),
    ],
)
def test_ranks(given, expected):
    assert expected == ranks(given)


def test_one_and_many():
    assert ("node 1", "nodes 0-2") == (nodes([1]), nodes([0, 1, 2]))
    assert ("a, b", "a and 2 more") == (some(["a", "b"]), some(["a", "b", "c"], most=1))


def test_the_affinity_is_what_kubernetes_reads():
    """Quoted as in JSON, which is YAML; a name cannot leave its quotes."""
    name = 'a"]\n  b: '
    *above, values = affinity([name, "gpu-1"]).splitlines()

    assert [name, "gpu-1"] == json.loads(values.removeprefix("              values: "))
    assert "            - key: kubernetes.io/hostname" == above[-2]
    assert "              operator: NotIn" == above[-1]
