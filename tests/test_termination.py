"""The termination message never exceeds what Kubernetes keeps, and is always JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.errors import FatalError
from trainer_agent.termination import TERMINATION_BYTES, shorten, with_tail, write_termination

TEXTS = st.text(max_size=30) | st.integers(0, 3000).map(lambda n: "\x00ü" * n) | st.just("\udcff")


@given(TEXTS, TEXTS, st.integers(300, TERMINATION_BYTES))
def test_with_tail_keeps_the_end(error, reason, limit):
    """The last words stay, the beginning of a long error goes; the result is always valid JSON within the limit."""
    text = with_tail({"exit_code": 1, "reason": reason, "error": error}, "error", limit=limit)
    found = json.loads(text)
    assert len(text.encode()) <= limit
    assert 1 == found["exit_code"]
    assert error.encode(errors="replace").decode().endswith(found["error"])


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
