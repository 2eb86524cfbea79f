"""What becomes of unfinished files when something happens to them, or to the order, between two attempts."""

import os

import pytest
from fetching import BLOCK, MIB, Faults, bring, move_to_another_node, tree
from memory_source import Memory, Whole

from trainer_agent.errors import FatalError
from trainer_agent.initializers import HIDDEN, digests
from trainer_agent.initializers.fetch import Bounds

pytestmark = pytest.mark.lab

BODY = BLOCK * 40
FILES = {"f": BODY, "g": BLOCK * 9}
ONE = Bounds(streams=1, timeout_s=60)


@pytest.fixture(scope="module")
def crc(tmp_path_factory):
    """Return the checksum of the whole of `BODY`, of the kind that is put together from those of its ranges."""
    path = tmp_path_factory.mktemp("crc") / "f"
    path.write_bytes(BODY)
    with path.open("rb") as file:
        return digests.of_file(file.fileno(), "crc64nvme", len(BODY))


@pytest.fixture
def attempt(tmp_path, crc):
    """Return what fetches until byte `at` of a file, or to the end."""

    def make(at=None, path="f", *, files=FILES, source=Memory, uri="memory://test", **more):
        hook = Faults((path, at, FatalError("ended", "ended")))
        made = source(files, uri=uri, hook=hook, checksums={"f": crc})
        if at is None:
            bring(made, tmp_path, bounds=ONE, **more)
        else:
            with pytest.raises(FatalError, match="ended"):
                bring(made, tmp_path, bounds=ONE, **more)
        return made

    return make


def parts(directory):
    return list((directory / HIDDEN / "parts").iterdir())


def remove_parts(directory, _):
    for part in parts(directory):
        part.unlink()


def cut_parts(directory, _):
    for part in parts(directory):
        os.truncate(part, MIB)


def lengthen_parts(directory, _):
    for part in parts(directory):
        os.truncate(part, len(BODY) + 1)


def ignore_it(_, attempt):
    """Nobody goes on with the part, which is removed."""
    attempt(5 * MIB, "g", ignore=("f",))


def ask_another_source(_, attempt):
    """It has the same file, with the same version."""
    attempt(5 * MIB, uri="memory://test/")


@pytest.mark.parametrize("meanwhile", [remove_parts, cut_parts, lengthen_parts, ignore_it, ask_another_source])
def test_what_was_noted_of_a_part_does_not_count_for_the_next(tmp_path, attempt, meanwhile):
    """Its space may be reserved and full of zeros when an attempt ends that began it anew."""
    attempt(30 * MIB)
    meanwhile(tmp_path, attempt)
    attempt(5 * MIB)
    attempt()

    assert FILES == tree(tmp_path)


def test_what_was_noted_does_not_count_when_all_is_sent_anew(tmp_path, attempt):
    """Its server no longer knows ranges, as another file has shown."""
    files = {"other": BLOCK * 60, "f": BODY}
    attempt(30 * MIB)
    attempt(5 * MIB, files=files, source=Whole)
    attempt(files=files)

    assert files == tree(tmp_path)


def test_what_another_node_left_unproved_is_fetched_once(tmp_path, attempt):
    """No checksum is looked at, so that nothing can prove it."""
    attempt(30 * MIB, verify="size")
    move_to_another_node(tmp_path)

    assert {path: len(body) for path, body in FILES.items()} == attempt(verify="size").served
    assert FILES == tree(tmp_path)
