"""The termination message never exceeds what Kubernetes keeps, and is always JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.errors import FatalError
from trainer_agent.termination import TERMINATION_BYTES, fit, shorten, with_tail, write_termination

TEXTS = st.text(max_size=30) | st.integers(0, 3000).map(lambda n: "\x00ü" * n) | st.just("\udcff")


@given(TEXTS, TEXTS, st.integers(300, TERMINATION_BYTES))
def test_with_tail_keeps_the_end(error, reason, limit):
    """The last words stay, the beginning of a long error goes; the result is always valid JSON within the limit."""
    text = with_tail({"exit_code": 1, "reason": reason, "error": error}, "error", limit=limit)
    found = json.loads(text)
    assert len(text.encode()) <= limit
    assert 1 == found["exit_code"]
    assert error.encode(errors="replace").decode().endswith(found["error"])


SUSPECTS = [{"kind": "gpu", "id": f"GPU-{n}", "node_rank": 0, "reason": "r" * 60} for n in range(3)]
FINDINGS = [
    {"check": "c", "code": f"c{n}", "message": f"GPU {n}" + "m" * 300 + "wanted", "hint": "h"} for n in range(3)
]


@pytest.mark.parametrize(
    "limit, hints, longest, findings, suspects",
    [
        (4096, 3, 311, 3, 3),
        (1469, 2, 311, 3, 3),
        (1436, 0, 160, 3, 3),
        (869, 0, 80, 3, 3),
        (749, 0, 80, 2, 3),
        (641, 0, 80, 1, 3),
        (520, 0, 80, 1, 2),
    ],
)
def test_fit_gives_up_the_least_first(limit, hints, longest, findings, suspects):
    """Hints of the mildest, the middle of texts, the mildest findings, the last suspects; and says how many."""
    text = fit({"verdict": "retry"}, SUSPECTS, FINDINGS, limit=limit)
    found = json.loads(text)

    assert len(text.encode()) <= limit
    assert (findings, suspects) == (len(found["findings"]), len(found["suspects"]))
    assert (3 - findings, 3 - suspects) == (found.get("left_out", 0), found.get("suspects_left_out", 0))
    assert [True] * hints + [False] * (findings - hints) == ["hint" in f for f in found["findings"]]
    messages = [f["message"] for f in found["findings"]]
    assert {longest} == {len(message) for message in messages}
    assert [f"GPU {n}" for n in range(findings)] == [message[:5] for message in messages]
    assert {"wanted"} == {message[-6:] for message in messages}


ENTRIES = st.lists(st.fixed_dictionaries({"message": TEXTS}, optional={"hint": TEXTS}), max_size=30)


@given(TEXTS, ENTRIES, ENTRIES, st.integers(300, TERMINATION_BYTES))
def test_fit_is_always_whole(name, suspects, findings, limit):
    """Valid JSON within the limit whatever it is, and everything is either there or counted, in its order."""
    text = fit({"verdict": "retry", "node": name}, suspects, findings, limit=limit)
    found = json.loads(text)

    assert len(text.encode()) <= limit
    assert "retry" == found["verdict"]
    assert len(suspects) == len(found["suspects"]) + found.get("suspects_left_out", 0)
    assert len(findings) == len(found.get("findings", ())) + found.get("left_out", 0)


def test_with_tail_cuts_no_more_than_needed():
    """The limit is used."""
    text = with_tail({"error": "a" * 10_000 + "end"}, "error")
    assert TERMINATION_BYTES == len(text)
    assert text.endswith('aend"}')


def test_with_tail_without_the_key():
    """A message without an error is cut in its texts, so that it stays JSON."""
    assert {"reason": "x" * 2048} == json.loads(with_tail({"reason": "x" * 5000}, "error"))


def test_shorten():
    """A text is cut between characters."""
    assert ("aü", "a", "?") == (shorten("aüb", 3), shorten("aü", 2), shorten("\udcff", 9))


def test_write_termination(tmp_path):
    """The kubelet mounts the file, so it is written in place and at most as long as Kubernetes reads."""
    target = tmp_path / "termination-log"
    target.write_text("old and longer")
    inode = target.stat().st_ino
    write_termination(target, "new")
    assert ("new", inode) == (target.read_text(), target.stat().st_ino)
    write_termination(target, "x" * 5000)
    assert 4096 == target.stat().st_size


def test_write_termination_to_a_place_that_is_none(tmp_path):
    """A termination log that cannot be written is an error of its own."""
    with pytest.raises(FatalError) as refused:
        write_termination(tmp_path, "x")
    expected = ("not-writable", f"cannot write the termination message to {tmp_path}: Is a directory")
    assert expected == (refused.value.code, refused.value.message)
