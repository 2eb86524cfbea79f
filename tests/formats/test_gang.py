"""gang: the section of the page about all nodes of a job."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer_agent.formats.gang import gang_section

HEAD = """\
Gang of 4
✗ retry node 2 (job1-node-0-2) never arrived: its name does not resolve
To blame: another node . Action of the gang: reschedule.
Suspect: node 2 (job1-node-0-2) : it never arrived
Suspect: gpu GPU-00000005-aaaa-bbbb-cccc-dddddddddddd of node 1 (job1-node-0-1) : it is slow
One of nodes 1,3: they failed with each other only
Avoid these hosts: gpu-18 gpu-20
Avoid these GPUs: GPU-00000005-aaaa-bbbb-cccc-dddddddddddd
For the pod template, so that Kubernetes keeps off these nodes:
affinity: nodeAffinity: requiredDuringSchedulingIgnoredDuringExecution: nodeSelectorTerms: - matchExpressions:
- key: kubernetes.io/hostname operator: NotIn values: [&quot;gpu-18&quot;, &quot;gpu-20&quot;]
attempt a1, epoch 1, verdict written by node 0 (job1-node-0-0)
"""


def words(markup):
    return " ".join(re.sub(r"<[^>]*>", " ", markup).split())


def part(section, title):
    """Return one part of the section, in words."""
    return words(next(d for d in re.findall("<details.*?</details>", section) if f"<h3>{title}</h3>" in d))


def test_a_report_about_one_node_has_no_section(data):
    assert gang_section(data) is None


def test_who_is_to_blame_and_what_to_do_without_stand_first(gang):
    assert words(gang_section({"gang": gang})).startswith(" ".join(HEAD.split()))


def test_what_is_to_be_copied_stands_as_it_is_typed(gang):
    """Line by line, as indentation has a meaning."""
    hosts, _, affinity = re.findall("<pre>(.*?)</pre>", gang_section({"gang": gang}), re.DOTALL)

    assert "gpu-18\ngpu-20" == hosts
    assert affinity.startswith("affinity:\n  nodeAffinity:\n    required")


def test_kubernetes_is_told_only_of_nodes_that_it_knows(gang):
    """Where the machine is not known, what is to be avoided is the name of a pod."""
    gang["avoid"]["hostnames"] = ["gpu-18", "job1-node-0-2"]
    text = words(gang_section({"gang": gang}))
    gang["avoid"]["hostnames"] = ["job1-node-0-2"]
    less = words(gang_section({"gang": gang}))

    unknown = "1 of these hosts are pods; their nodes of Kubernetes are not known."
    assert "Avoid these hosts: gpu-18 job1-node-0-2" in text
    assert f"values: [&quot;gpu-18&quot;] {unknown}" in text
    assert unknown in less
    assert "affinity" not in less


def test_parts(gang):
    """What was seen, and each part with its sum before it is opened."""
    section = gang_section({"gang": gang})

    assert ["Arrivals", "Pairs", "Collective", "Differences", "Phases"] == re.findall("<h3>(.*?)</h3>", section)
    assert part(section, "Arrivals").startswith("Arrivals 1 missing, 3 ready Who is not ready first")
    assert part(section, "Pairs").startswith("Pairs tests 3, rounds 3, failed 1 Every node")
    assert (
        "Collective gloo 3 ranks over tcp passed ✓ passed exact on all ranks "
        "operation bytes seconds bus bandwidth GB/s part "
        "all-reduce 1,048,576 0.003 0.5 of 1 expected 50 % all-gather 1,024 0.001 0.25"
    ) == part(section, "Collective")
    assert ("Differences driver key value nodes driver ! warning 550.54 0,3 535.1 1 ! minority") == part(
        section, "Differences"
    )
    assert ("Phases roll-call 30.0 s, consistency 0.0 s roll-call 30.00 s consistency 0.02 s") == part(
        section, "Phases"
    )


def test_phases_follow_each_other(gang):
    """Each begins where the one before ends; the shortest can be seen."""
    gang["phases"] = [{"name": n, "seconds": s} for n, s in (("a", 3), ("b", 0), ("c", 1))]

    drawn = re.findall(r'class="value" x="([^"]*)" width="([^"]*)"', gang_section({"gang": gang}))[-3:]

    assert [("0.00", "75.00"), ("75.00", "0.50"), ("75.00", "25.00")] == drawn


def test_parts_are_open_only_where_something_is_wrong(gang, well):
    for section, opened in ((gang, 5), (well, 0)):
        assert opened == gang_section({"gang": section}).count(" open>")


def test_when_all_is_well_the_head_is_one_line(well):
    text = words(gang_section({"gang": well}))

    assert text.startswith(
        "Gang of 4 ✓ pass all nodes ready in 1.5 s, collective gloo 3 ranks over tcp passed, "
        "2 of 2 pair tests passed, 1.5 s in all attempt a1, epoch 1, verdict written by node 0 (job1-node-0-0) "
        "Arrivals 4 ready"
    )


def test_what_did_not_happen_is_left_out(gang):
    less = {"pairs": [], "collective": None, "differences": [], "phases": [], "attempt": ""}

    section = gang_section({"gang": {**gang, **less}})

    assert ["Arrivals"] == re.findall("<h3>(.*?)</h3>", section)
    assert "epoch 1, verdict written by node 0" in section
    assert "attempt" not in section


def test_a_key_that_differs_everywhere_fills_no_pages(gang):
    values = [{"value": f"v{n}", "ranks": [n]} for n in range(100)]
    gang["differences"] = [{"key": "boot", "severity": "info", "values": values, "minority": []}]

    told = part(gang_section({"gang": gang}), "Differences")

    assert told.startswith("Differences boot key value nodes boot - info v0 0 v1 1")
    assert told.endswith("v15 15 84 more values 16-99")


def test_hundreds_of_suspects_are_bounded(gang):
    gang["suspects"] = [{"kind": "node", "id": f"n{n}", "node_rank": n, "reason": "r"} for n in range(300)]
    gang["undetermined"] = [{"ranks": [n], "reason": "r"} for n in range(65)]

    text = words(gang_section({"gang": gang}))

    assert "Suspect: node 63 (n63) : r and 236 more One of node 0: r" in text
    assert "One of node 63: r and 1 more Avoid" in text


def test_hostile_texts_stay_texts(gang, hostile_gang):
    """The section of the attacker has the elements of the section of everybody."""
    tags = re.compile(r"<([a-z0-9]+)")

    section = gang_section({"gang": hostile_gang})

    assert set(tags.findall(gang_section({"gang": gang}))) == set(tags.findall(section))
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=//evil.example" in section
    assert "\x00" not in section
    assert [] == re.findall(r'="[^"]*[<>][^"]*"', section)


NUMBERS = st.floats(0, 1e14)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NUMBERS, NUMBERS, NUMBERS)
def test_whatever_the_numbers_are_they_can_be_drawn(gang, arrived, seconds, rate):
    gang["nodes"][1]["arrived_s"] = arrived
    gang["phases"][0]["seconds"] = seconds
    gang["pairs"][0]["gbps"] = gang["collective"]["rows"][0]["busbw_gbps"] = rate

    section = gang_section({"gang": gang})

    tracks = re.findall(r'x="([^"]*)" width="([^"]*)" height="10"', section)
    assert [] == [(x, width) for x, width in tracks if not 0 <= float(x) <= float(x) + float(width) <= 100.01]


@pytest.mark.parametrize(
    "blame, who", [("none", "nobody"), ("self", "this node"), ("undetermined", "somebody, and it")]
)
def test_to_blame(gang, blame, who):
    assert f"To blame: {who}" in words(gang_section({"gang": {**gang, "blame": blame}}))
