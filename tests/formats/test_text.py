"""text: what an operator reads first stands first, and nothing in it steers the terminal."""

import re

import pytest

from trainer_agent.check import CheckResult, Status
from trainer_agent.errors import Action, Finding
from trainer_agent.formats.text import write
from trainer_agent.policy import Verdict
from trainer_agent.report import Report

TEXT = """\
preflight RETRY  node 3 of 16 (worker-3)  6.5 s
  suspect: node worker-3: GPU 5 has 3 uncorrectable memory errors since boot, wanted 0

FAIL   gpu-memory   1 of 8 GPUs is bad
       error: GPU 5 has 3 uncorrectable memory errors since boot, wanted 0 [gpu-memory-errors]
         -> drain node worker-3 and reset GPU 5: nvidia-smi --gpu-reset -i 5
ERROR  cuda         the check ran out of time: no answer within 5 s
WARN   shm          0.1 GiB
       warning: 64 MiB, wanted 8 GiB [shm-small]
         -> mount an emptyDir
WARN   gpu-link     1 is slow
       warning: GPU 2 copies 21 GB/s from the host, wanted 48 GB/s or more [link-slow]
         -> compare `nvidia-smi -q -i 2` with its neighbours
PASS   environment  torch: nodes 16, this one has rank 3
PASS   gpu-count    8 GPUs
SKIP   gpu-clocks   runs from --profile deep on

checks: 1 fail, 1 error, 2 warn, 2 pass, 1 skip
action: reschedule. To go on in spite of a check: --ignore gpu-memory,cuda
"""


def test_the_whole_text(data):
    """The suspect stands first, the worst check next, each finding with its hint."""
    assert TEXT == write(data)


GANG = """\
preflight RETRY  node 3 of 16 (worker-3)  6.5 s
  suspect: node worker-3: GPU 5 has 3 uncorrectable memory errors since boot, wanted 0
gang of 4: node 2 (job1-node-0-2) never arrived: its name does not resolve
  blame: peer - node 2 (job1-node-0-2), gpu GPU-00000005-aaaa-bbbb-cccc-dddddddddddd of node 1 (job1-node-0-1)
"""


def test_a_gang_stands_between_the_verdict_and_the_checks(data, gang):
    text = write({**data, "gang": gang})

    assert text.startswith(GANG)
    assert TEXT.partition("\n\n")[2] == text.partition("\n\n")[2]


def test_a_gang_of_which_all_is_well_is_one_line(data, well):
    above = write({**data, "gang": well}).partition("\n\n")[0].splitlines()

    assert (3, True) == (len(above), above[2].startswith("gang of 4: all nodes ready in 1.5 s, collective gloo"))


def test_hundreds_of_suspects_are_counted(data):
    """A gang may have them; a node with all its devices has fewer than are shown."""
    data["suspects"] = [{**data["suspects"][0], "id": f"n{n}", "reason": "r"} for n in range(300)]

    lines = write(data).splitlines()

    assert ["  suspect: node n19: r", "  and 280 more suspects", ""] == lines[20:23]


def test_nothing_to_say():
    """Without checks there are no suspects, no counts and nothing to ignore."""
    report = Report(Verdict.PASS, Action.CONTINUE, "a", 0, 1, [], [], "2026", 0.04)

    assert "preflight PASS  node 0 of 1 (a)  0.0 s\n\n\naction: continue\n" == write(report.as_dict())


def test_a_pod_of_an_operators_job_is_no_node_of_one():
    """Its index is one of many machines, each of which is checked by itself."""
    report = Report(Verdict.PASS, Action.CONTINUE, "a", 3, 1, [], [], "2026", 0.04)

    assert write(report.as_dict()).startswith("preflight PASS  node 3 (a)  0.0 s\n")


def test_the_failure_that_decided_stands_first(data):
    """Among failures, the one that asks for most; within a check, errors before warnings."""
    stop = Finding("worse", "worse", hint="", action=Action.STOP)
    data["checks"].append(CheckResult("storage", Status.FAIL, "gone", Action.STOP, 0, (stop,)).as_dict())
    data["checks"][-1]["findings"].insert(0, {**data["checks"][1]["findings"][0], "code": "milder"})

    lines = write(data).splitlines()

    assert "FAIL   storage      gone" == lines[3]
    assert ["       error: worse [worse]", "       warning: 64 MiB, wanted 8 GiB [milder]"] == lines[4:6]


def test_a_gang_has_the_colour_of_its_verdict(data, gang, well):
    assert "\n\033[31mgang of 4\033[0m: node 2" in write({**data, "gang": gang}, colour=True)
    assert "\n\033[32mgang of 4\033[0m: all nodes" in write({**data, "gang": well}, colour=True)


def test_colours_change_nothing_else(data):
    """They surround verdict, statuses, severities, suspects and hints."""
    text = write(data, colour=True)

    painted = [
        "\033[31mpreflight RETRY\033[0m",
        "\033[31mFAIL \033[0m",
        "\033[35mERROR\033[0m",
        "\033[33mwarning\033[0m",
        "\033[1mmount an emptyDir\033[0m",
    ]
    assert [] == [words for words in painted if words not in text]
    assert TEXT == re.sub(r"\033\[\d+m", "", text)


@pytest.mark.parametrize("colour", [False, True])
def test_nothing_steers_the_terminal(hostile, hostile_gang, colour):
    """Whatever a peer or a device calls itself, only our own colours are control characters."""
    text = re.sub(r"\033\[\d+m", "", write({**hostile, "gang": hostile_gang}, colour=colour))

    assert [] == sorted({c for c in text if not c.isprintable() and c != "\n"})
    assert r"\x00\x1b[2J\u202e\ud800" in text
