"""A rank fails: its own exit code comes through, and the termination message names it."""

from __future__ import annotations

import pytest
from podlab import SCRIPTS, TORCHRUN

pytestmark = pytest.mark.lab

HOST = "job1-node-0-0"
TWO_RANKS = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2"}
FAIL = str(SCRIPTS / "fail.py")
TRACEBACK = "Traceback (most recent call last):"
MOST_BYTES = 4096  # what Kubernetes keeps of a termination message


def message(code, how, error):
    """Return the whole termination message for rank 1."""
    who = {"host": HOST, "rank": 1, "local_rank": 1}
    return {"exit_code": code, "reason": f"rank 1 (local rank 1) {how} on {HOST}", **who, "error": error}


@pytest.mark.parametrize(
    "way, code, how",
    [
        ("exit42", 42, "exited with code 42"),
        ("sigkill", 137, "was killed by SIGKILL"),
        ("sigsegv", 139, "was killed by SIGSEGV"),
    ],
)
def test_the_exit_code_of_the_failing_rank_comes_through(lab, way, code, how):
    """The rank's own code is ours, and the message names rank, host and code; a silent rank has no last words."""
    container = lab[0].launch("--", FAIL, way, env=TWO_RANKS)
    assert code == container.wait()
    assert message(code, how, "") == container.termination


def test_what_the_store_says_about_names_is_nobodys_last_words(lab):
    """Without a name server torch warns about it on standard error; that is not why a rank failed."""
    lab.silence()
    container = lab[0].launch("--", FAIL, "exit42", env=TWO_RANKS)
    assert 42 == container.wait()
    assert "socket.cpp" in container.stderr
    assert message(42, "exited with code 42", "") == container.termination


def test_bare_torchrun_says_1_whatever_happened(lab):
    """The contrast: a rank's 42 becomes 1."""
    container = lab[0].run(TORCHRUN, "--standalone", "--nproc-per-node", "2", FAIL, "exit42")
    assert 1 == container.wait()


@pytest.mark.parametrize("way", ["exception", "recorded"])
def test_the_message_ends_with_the_exception_of_the_failing_rank(lab, way):
    """With @record or without, the traceback of rank 1 is there, and nothing of torchrun's own after it."""
    container = lab[0].launch("--", FAIL, way, env=TWO_RANKS)
    assert 1 == container.wait()
    told = container.termination
    lines = told["error"].strip().splitlines()
    assert message(1, "exited with code 1", told["error"]) == told
    assert [TRACEBACK, "ValueError: the loss is not a number"] == [lines[0], lines[-1]]
    assert 1 == told["error"].count(TRACEBACK)


@pytest.mark.parametrize("way", ["huge", "huge_recorded"])
def test_a_huge_message_is_still_json_within_the_limit(lab, way):
    """Of 100 kB of quotes, newlines and control characters the end is kept, and the JSON stays whole."""
    container = lab[0].launch("--", FAIL, way, env=TWO_RANKS)
    assert 1 == container.wait()
    told = container.termination
    assert message(1, "exited with code 1", told["error"]) == told
    assert '"layer 4999" \u2192 caf\u00e9 \\ \u0001' == told["error"].strip("\n").splitlines()[-1]
    assert container.termination_bytes <= MOST_BYTES


def test_the_end_of_a_very_long_line_is_kept(lab):
    """A message of 200 kB on one line fills the termination message to its limit with the line's end."""
    container = lab[0].launch("--", FAIL, "long_line", env=TWO_RANKS)
    assert 1 == container.wait()
    error = container.termination["error"]
    assert f"{'long ' * 500}and its end" == error[-2511:]
    assert container.termination_bytes <= MOST_BYTES


def test_a_rank_killed_for_memory_is_told_as_out_of_memory(memory_cgroup, lab):
    """The kernel kills without a word; its counter in the container's cgroup tells."""
    container = lab[0].launch("--", FAIL, "out_of_memory", env=TWO_RANKS, cgroup=memory_cgroup)
    assert 137 == container.wait()
    told = container.termination
    what = "out of memory: the kernel killed 1 process(es) of this container"
    reason = f"{what}; rank 1 (local rank 1) was killed by SIGKILL on {HOST}"
    assert (137, 1, reason) == (told["exit_code"], told["rank"], told["reason"])
