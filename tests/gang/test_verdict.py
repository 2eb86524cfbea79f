"""One verdict for all nodes, and what it means for each."""

import json

import pytest
from simulated import plain_json

from trainer_agent.check import CheckResult, Rule, Status
from trainer_agent.errors import Action, Finding, Severity
from trainer_agent.gang.verdict import Charge, Minutes, blame, results, section, seen_by, weigh
from trainer_agent.policy import Suspect, Verdict

GO = Rule("broken", when="", hint="look", action=Action.RESCHEDULE)
AGAIN = Rule("unlucky", when="", hint="again", action=Action.RETRY)
STOP = Rule("wrong", when="", hint="correct it", action=Action.STOP)
WARN = Rule("odd", when="", hint="", severity=Severity.WARNING)
INFO = Rule("fact", when="", hint="", severity=Severity.INFO)


def charge(rule, *culprits, check="roll-call", between=(), suspects=(), text=""):
    return Charge(check, rule.found(text or f"{rule.code} {culprits or between}"), culprits, between, suspects)


def node(rank, **changes):
    known = {"hostname": f"pod-{rank}", "node": f"machine-{rank}", "address": "", "arrived_s": 0.0, "state": "ready"}
    return {"rank": rank, **known, "note": "", "clock_offset_s": None} | changes


def verdict_of(*charges, nodes=4, unnamed=(), **minutes):
    listed = [node(rank, **({"node": "", "hostname": ""} if rank in unnamed else {})) for rank in range(nodes)]
    return section(Minutes(charges=list(charges), **minutes), listed, nnodes=nodes, attempt="a1", epoch=3, written_by=1)


@pytest.mark.parametrize(
    "rules,verdict,action",
    [
        ((), Verdict.PASS, Action.CONTINUE),
        ((INFO,), Verdict.PASS, Action.CONTINUE),
        ((INFO, WARN), Verdict.WARN, Action.CONTINUE),
        ((WARN, AGAIN), Verdict.RETRY, Action.RETRY),
        ((AGAIN, GO, WARN), Verdict.RETRY, Action.RESCHEDULE),
        ((GO, STOP, AGAIN), Verdict.FATAL, Action.STOP),
    ],
)
def test_the_worst_decides(rules, verdict, action):
    assert (verdict, action) == weigh([charge(rule, 0) for rule in rules])


@pytest.mark.parametrize(
    "charges,blames",
    [
        ((), "none none none"),
        ((charge(WARN, 1),), "none none none"),
        ((charge(STOP),), "none none none"),
        ((charge(GO, 1),), "peer self peer"),
        ((charge(GO, 0, 2),), "self peer self"),
        ((charge(GO, between=(0, 1)),), "undetermined undetermined peer"),
        ((charge(GO, between=(0, 1)), charge(GO, 2)), "peer peer self"),
        ((charge(WARN, 0), charge(GO, 2)), "peer peer self"),
    ],
)
def test_blame_is_seen_from_each_node(charges, blames):
    verdict = verdict_of(*charges)

    assert blames.split() == [blame(verdict, rank) for rank in range(3)]
    assert blames.split() == [seen_by(verdict, rank)["blame"] for rank in range(3)]


def test_only_blame_differs_between_the_reports_of_nodes():
    verdict = verdict_of(charge(GO, 1), charge(WARN, 0))
    seen = [seen_by(verdict, rank) for rank in range(4)]

    assert [each | {"blame": ""} for each in seen] == [seen[0] | {"blame": ""}] * 4
    assert not {"charges", "messages", "skipped", "lingers"} & seen[0].keys()


def test_what_the_section_says():
    phases = [{"name": "roll-call", "seconds": 1.5}]
    verdict = verdict_of(charge(WARN, 2), charge(GO, 1), phases=phases, messages={"roll-call": "all are here"})
    del verdict["charges"]

    assert {
        "attempt": "a1",
        "epoch": 3,
        "written_by": 1,
        "nnodes": 4,
        "verdict": "retry",
        "action": "reschedule",
        "blame": "none",
        "summary": "broken (1,)",
        "nodes": [node(rank) for rank in range(4)],
        "differences": [],
        "collective": None,
        "pairs": [],
        "suspects": [{"kind": "node", "id": "pod-1", "node_rank": 1, "reason": "broken (1,)"}],
        "undetermined": [],
        "avoid": {"hostnames": ["machine-1"], "gpus": []},
        "phases": phases,
        "messages": {"roll-call": "all are here"},
        "skipped": {},
        "lingers": False,
    } == verdict


@pytest.mark.parametrize(
    "charges,summary",
    [
        ((), "here; alike; right"),
        ((charge(INFO),), "here; alike; right"),
        ((charge(INFO), charge(WARN, 1)), "odd (1,)"),
        ((charge(WARN, 1), charge(GO, 2), charge(STOP, 3)), "broken (2,)"),
    ],
)
def test_the_summary_is_the_worst(charges, summary):
    messages = {"collective": "right", "roll-call": "here", "consistency": "alike"}

    assert summary == verdict_of(*charges, messages=messages)["summary"]


def test_suspects_are_nodes_and_devices_of_errors():
    """Each once, with the first reason; a link or an unknown one of two is no node to avoid."""
    gpu = Suspect("gpu", "GPU-1", 1, "fails")
    link = Suspect("link", "pod-2 - pod-3", 2, "cut")
    verdict = verdict_of(
        charge(GO, 1, text="first"),
        charge(GO, 1, 0, text="second", suspects=(gpu,)),
        charge(GO, between=(2, 3), suspects=(link,)),
        charge(GO, between=(0, 3), text="a riddle"),
        charge(WARN, 2),
        unnamed=(0,),
    )

    assert [
        {"kind": "node", "id": "pod-1", "node_rank": 1, "reason": "first"},
        {"kind": "node", "id": "rank 0", "node_rank": 0, "reason": "second"},
        vars(gpu),
        vars(link),
    ] == verdict["suspects"]
    assert [{"ranks": [0, 3], "reason": "a riddle"}] == verdict["undetermined"]
    assert {"hostnames": ["machine-1"], "gpus": ["GPU-1"]} == verdict["avoid"]


def test_hostnames_are_avoided_where_machines_have_no_names():
    nodes = [node(0, node=""), node(1)]
    found = section(Minutes([charge(GO, 0, 1)]), nodes, nnodes=2, attempt="", epoch=1, written_by=0)

    assert ["pod-0", "machine-1"] == found["avoid"]["hostnames"]


def test_a_culprit_of_whom_nothing_is_known_is_a_rank():
    """As one that the job does not have, on a node that has never met rank 0."""
    found = section(Minutes([charge(GO, 7)]), [node(0)], nnodes=1, attempt="", epoch=1, written_by=0)

    assert [("rank 7", 7)] == [(suspect["id"], suspect["node_rank"]) for suspect in found["suspects"]]
    assert [] == found["avoid"]["hostnames"]


def rows(verdict, rank):
    return {name: (str(row.status), str(row.action), row.message) for name, row in results(verdict, rank).items()}


def test_rows_of_a_gang_that_is_well():
    phases = [{"name": name, "seconds": 1.0} for name in ("roll-call", "collective", "localisation", "verdict")]
    collective = {"backend": "gloo", "ranks": 4, "transport": "tcp", "rows": [], "passed": True, "message": "right"}
    messages = {"roll-call": "here", "collective": "right"}
    verdict = verdict_of(messages=messages, skipped={"consistency": "left out"}, phases=phases, collective=collective)
    measured = {"backend": "gloo", "ranks": 4, "transport": "tcp", "rows": []}

    assert {
        "roll-call": CheckResult("roll-call", Status.PASS, "here", Action.CONTINUE, 1.0, (), {"nodes": 4}),
        "consistency": CheckResult("consistency", Status.SKIP, "left out"),
        "collective": CheckResult("collective", Status.PASS, "right", Action.CONTINUE, 2.0, (), measured),
    } == results(verdict, 2)


def test_the_node_at_fault_goes_and_the_others_try_again():
    """Nothing is wrong with a node that only waited for another; what was not reached was skipped."""
    verdict = verdict_of(charge(GO, 1), charge(GO, between=(2, 3), text="riddle"))
    skipped = dict.fromkeys(("consistency", "collective"), ("skip", "continue", "the nodes did not come so far"))

    actions = {rank: str(results(verdict, rank)["roll-call"].action) for rank in range(4)}
    assert {0: "retry", 1: "reschedule", 2: "reschedule", 3: "reschedule"} == actions
    assert skipped | {"roll-call": ("fail", "retry", "broken (1,)")} == rows(verdict, 0)


def test_a_configuration_that_is_wrong_stops_everybody():
    verdict = verdict_of(charge(STOP, check="consistency"), messages={"roll-call": "here"})

    assert [("fail", "stop", "wrong ()")] * 4 == [rows(verdict, rank)["consistency"] for rank in range(4)]


def test_findings_keep_their_evidence():
    found = GO.found("broken", lost=[1])
    verdict = verdict_of(Charge("collective", found, (1,), ()), Charge("collective", WARN.found("odd")))
    row = results(verdict, 1)["collective"]

    evidence = {"lost": [1], "culprits": [1], "undetermined": []}
    assert Finding("broken", "broken", Severity.ERROR, "look", Action.RESCHEDULE, evidence) == row.findings[0]
    assert ["broken", "odd"] == [finding.code for finding in row.findings]
    warned = results(verdict_of(charge(WARN, 1)), 1)["roll-call"]
    assert (Status.WARN, Action.CONTINUE) == (warned.status, warned.action)


def test_a_verdict_is_plain_json():
    link = Suspect("link", "a - b", 0, "cut")
    verdict = verdict_of(charge(GO, 1, suspects=(link,)), charge(GO, between=(0, 1)), pairs=[{"a": 0}], lingers=True)

    assert plain_json(verdict)
    again = json.loads(json.dumps(verdict))
    assert [results(verdict, rank) for rank in range(4)] == [results(again, rank) for rank in range(4)]
