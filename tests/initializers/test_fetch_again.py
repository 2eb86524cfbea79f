"""What every source shares, the second time: recognising, updating, resuming."""

import os

import pytest
from fetching import AT_HAND, BIG, MIB, Faults, bring, move_to_another_node, sha256, tree
from memory_source import PIECE, Memory

from trainer_agent.errors import FatalError
from trainer_agent.initializers import HIDDEN, OfflineError
from trainer_agent.initializers.fetch import Bounds

pytestmark = pytest.mark.lab

# --- the second time


def test_a_complete_destination_is_recognised(tmp_path):
    """Nothing is read again."""
    files = {f"f{i}": b"x" * i for i in range(50)}
    bring(Memory(files), tmp_path)
    again = Memory(files)

    done = bring(again, tmp_path)

    assert (again.reads, done.fetched_files, done.files) == ([], 0, 50)


def test_what_a_killed_attempt_left_beside_its_record_is_removed(tmp_path):
    """It was killed after everything was in place and recorded."""
    bring(Memory({"f": b"abc"}), tmp_path)
    kept = sorted(path.name for path in (tmp_path / HIDDEN).iterdir())
    (tmp_path / HIDDEN / "journal").write_text("{}")
    (tmp_path / HIDDEN / "parts").mkdir()

    bring(Memory({"f": b"abc"}), tmp_path)

    assert kept == sorted(path.name for path in (tmp_path / HIDDEN).iterdir())


def test_only_what_changed_is_fetched(tmp_path):
    """Changed and new files come, files that are gone at the source go, files of the user stay."""
    bring(Memory({"same": b"1", "changed": b"old", "gone/away": b"2"}), tmp_path)
    (tmp_path / "mine").write_bytes(b"the user's own")
    later = Memory({"same": b"1", "changed": b"new", "added": b"3"})

    bring(later, tmp_path)

    assert tree(tmp_path) == {"same": b"1", "changed": b"new", "added": b"3", "mine": b"the user's own"}
    assert sorted(later.served) == ["added", "changed"]
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("damage", [b"xyz", b"ab", b"", None], ids=["other bytes", "shorter", "empty", "missing"])
def test_a_damaged_file_is_fetched_again(tmp_path, damage):
    """A file that is no longer as it was left is proved, or fetched."""
    bring(Memory({"f": b"abc", "g": b"g"}), tmp_path)
    if damage is None:
        (tmp_path / "f").unlink()
    else:
        (tmp_path / "f").write_bytes(damage)
    again = Memory({"f": b"abc", "g": b"g"})

    bring(again, tmp_path)

    assert (tree(tmp_path), list(again.served)) == ({"f": b"abc", "g": b"g"}, ["f"])


def test_a_copied_destination_is_proved_instead_of_fetched(tmp_path):
    """Another modification time, the same bytes."""
    bring(Memory({"f": b"abc"}), tmp_path)
    os.utime(tmp_path / "f", (1, 1))
    again = Memory({"f": b"abc"})

    bring(again, tmp_path)

    assert again.reads == []


def test_full_verification_finds_rot(tmp_path):
    """Bytes that changed under the same size and time are found by hash, and only when asked."""
    bring(Memory({"f": b"abc", "g": b"g"}), tmp_path)
    stat = (tmp_path / "f").stat()
    (tmp_path / "f").write_bytes(b"abX")
    os.utime(tmp_path / "f", ns=(stat.st_atime_ns, stat.st_mtime_ns))

    bring(Memory({"f": b"abc", "g": b"g"}), tmp_path)
    assert tree(tmp_path)["f"] == b"abX"
    again = Memory({"f": b"abc", "g": b"g"})
    bring(again, tmp_path, verify="full")

    assert (tree(tmp_path), list(again.served)) == ({"f": b"abc", "g": b"g"}, ["f"])


def test_another_source_in_the_same_place(tmp_path):
    """The tree becomes that of the new source."""
    bring(Memory({"a": b"1", "b": b"2"}, uri="memory://one"), tmp_path)

    bring(Memory({"b": b"2", "c": b"3"}, uri="memory://two"), tmp_path)

    assert tree(tmp_path) == {"b": b"2", "c": b"3"}


def test_what_would_be_in_the_way_and_goes_with_the_source_is_not(tmp_path):
    """But what the user has put beside it stays, and is told before the first byte."""
    bring(Memory({"a/x": b"1", "a/y": b"2", "b": b"3"}), tmp_path)
    (tmp_path / "a" / "mine").write_bytes(b"the user's own")
    source = Memory({"a": b"4", "b/z": b"5"})
    with pytest.raises(FatalError, match="a is a directory, and the source has a file of that name"):
        bring(source, tmp_path)

    assert [] == source.reads
    (tmp_path / "a" / "mine").unlink()
    bring(source, tmp_path)
    assert {"a": b"4", "b/z": b"5"} == tree(tmp_path)


def test_another_selection_of_the_same_files_is_recorded(tmp_path):
    """So that it counts offline, too; nothing else is done."""

    class Offline(Memory):
        def entries(self):
            raise OfflineError("hub-offline", "nobody may ask")

    files = {"config.json": b"{}", "weights": b"w"}
    bring(Memory(files), tmp_path)
    before = (tmp_path / "weights").stat()
    again = Memory(files)

    bring(again, tmp_path, allow=("*.json", "weights"))
    done = bring(Offline({}), tmp_path, allow=("*.json", "weights"))

    assert ([], 2, before) == (again.reads, done.files, (tmp_path / "weights").stat())


def test_files_of_the_users_own_are_replaced_with_a_warning(tmp_path, capsys):
    """What was not fetched, and what was changed since; once for all."""
    (tmp_path / "mine").write_bytes(b"not fetched")
    bring(Memory({"edited": b"1", "mine": b"2", "same": b"3"}), tmp_path)
    first = capsys.readouterr().out
    (tmp_path / "edited").write_bytes(b"by the user")
    bring(Memory({"edited": b"1", "mine": b"4", "same": b"3"}), tmp_path)
    second = capsys.readouterr().out
    bring(Memory({"edited": b"5", "mine": b"6", "same": b"3"}), tmp_path)

    said = "replacing files that are not as a fetch has left them"
    assert {"edited": b"5", "mine": b"6", "same": b"3"} == tree(tmp_path)
    assert [True, True, False] == [said in text for text in (first, second, capsys.readouterr().out)]
    assert ("first=mine" in first, "first=edited" in second) == (True, True)


# --- resuming


def test_what_nobody_goes_on_with_is_removed(tmp_path):
    """A part of what has been replaced at the source would take its room for ever."""
    parts, there = tmp_path / HIDDEN / "parts", []
    first = Memory({"f": BIG, "g": b"g"}, hook=Faults(("f", 8 * MIB, FatalError("stop", "stop"))))
    with pytest.raises(FatalError):
        bring(first, tmp_path, bounds=Bounds(streams=1, timeout_s=60))
    [before] = parts.iterdir()

    bring(Memory({"f": b"new", "g": b"g"}, hook=lambda path, at: there.extend(parts.iterdir())), tmp_path)

    assert before not in there
    assert there != []


@pytest.mark.parametrize("hashed", [None, sha256], ids=["crc64nvme", "sha256"])
def test_an_interrupted_fetch_goes_on(tmp_path, hashed):
    """Ranges and files that were whole are not fetched again, and what was wrong before is found."""
    files = {"big": BIG, "small": b"s" * 1000}
    known = {p: hashed(b) for p, b in files.items()} if hashed else {}
    at = 128 * MIB + 2 * PIECE  # in the last range of either size
    first = Memory(files, checksums=known, hook=Faults(("big", at, FatalError("stop", "stop"))))
    with pytest.raises(FatalError):
        bring(first, tmp_path, bounds=Bounds(streams=1, timeout_s=60))
    second = Memory(files, checksums=known)

    bring(second, tmp_path)

    assert tree(tmp_path) == files
    assert second.served["big"] <= len(BIG) - 128 * MIB + AT_HAND


def test_resumed_bytes_are_proved_too(tmp_path):
    """Rot in a part is noticed by the checksum, and everything comes again."""
    at = 128 * MIB + 2 * PIECE
    first = Memory({"big": BIG}, checksums={"big": sha256(BIG)}, hook=Faults(("big", at, FatalError("stop", "stop"))))
    with pytest.raises(FatalError):
        bring(first, tmp_path, bounds=Bounds(streams=1, timeout_s=60))
    [part] = (tmp_path / ".trainer-agent" / "parts").iterdir()
    with part.open("r+b") as file:
        file.write(b"rot")
    second = Memory({"big": BIG}, checksums={"big": sha256(BIG)})

    bring(second, tmp_path)

    assert tree(tmp_path) == {"big": BIG}


def test_what_another_kernel_left_counts_only_with_a_proof(tmp_path):
    """A node that crashed may have lost bytes that it had noted."""
    at = 128 * MIB
    for known, expected in (({}, 2 * len(BIG) - 128 * MIB), ({"big": sha256(BIG)}, len(BIG) - 128 * MIB)):
        place = tmp_path / str(len(known))
        first = Memory({"big": BIG}, checksums=known, hook=Faults(("big", at, FatalError("stop", "stop"))))
        with pytest.raises(FatalError):
            bring(first, place, bounds=Bounds(streams=1, timeout_s=60))
        move_to_another_node(place)
        second = Memory({"big": BIG}, checksums=known)

        bring(second, place)

        assert tree(place) == {"big": BIG}
        assert expected <= second.served["big"] <= expected + 2 * AT_HAND


def test_files_that_were_whole_are_only_put_in_place(tmp_path):
    """An attempt that ended after the last byte is finished without the source's bytes."""
    files = {f"f{i}": b"x" * (i + 1) for i in range(20)}
    first = Memory({**files, "last": b"l"}, hook=Faults(("last", 0, FatalError("stop", "stop"))))
    with pytest.raises(FatalError):
        bring(first, tmp_path, bounds=Bounds(streams=1, timeout_s=60))
    second = Memory({**files, "last": b"l"})

    bring(second, tmp_path)

    assert tree(tmp_path) == {**files, "last": b"l"}
    assert set(second.served) <= {"last"} | {p for p, b in files.items() if not first.served[p]}


def test_offline_a_complete_destination_is_enough(tmp_path):
    """And an incomplete one is not."""

    class Offline(Memory):
        def entries(self):
            raise OfflineError("hub-offline", "nobody may ask")

    with pytest.raises(OfflineError):
        bring(Offline({}), tmp_path)
    bring(Memory({"f": b"abc"}), tmp_path)

    done = bring(Offline({}), tmp_path)

    assert (done.files, done.fetched_files, tree(tmp_path)) == (1, 0, {"f": b"abc"})
    (tmp_path / "f").unlink()
    with pytest.raises(OfflineError):
        bring(Offline({}), tmp_path)


def test_offline_another_selection_is_not_there(tmp_path):
    """What a narrower one left is a part of what is wanted now."""

    class Offline(Memory):
        def entries(self):
            raise OfflineError("hub-offline", "nobody may ask")

    bring(Memory({"config.json": b"{}", "weights": b"w"}), tmp_path, allow=("*.json",))

    bring(Offline({}), tmp_path, allow=("*.json",))
    with pytest.raises(OfflineError):
        bring(Offline({}), tmp_path, allow=("*",))


def test_a_model_does_not_replace_a_dataset(tmp_path):
    """Of two initializers with one OUTPUT_PATH the second would remove what the first has fetched."""
    bring(Memory({"a": b"1"}, uri="memory://one"), tmp_path)

    with pytest.raises(FatalError, match="holds the dataset of memory://one, and a model is to go there") as refused:
        bring(Memory({"b": b"2"}, uri="memory://two"), tmp_path, kind="model")

    assert ("output-path-shared", {"a": b"1"}) == (refused.value.code, tree(tmp_path))


def test_what_is_removed_is_told(tmp_path, capsys):
    """With the source that it came from."""
    bring(Memory({"a": b"1", "b": b"2"}, uri="memory://one"), tmp_path)
    bring(Memory({"b": b"2", "c": b"3"}, uri="memory://two"), tmp_path)

    said = capsys.readouterr().out
    assert "removing what was fetched earlier and is not wanted any more" in said
    assert "fetched_from=memory://one" in said


def test_a_list_of_checksums_that_names_other_files_is_refused(tmp_path):
    """It was made for something else; names that patterns leave out are fine."""
    known = {"f": sha256(b"abc"), "ignored.md": sha256(b"x")}
    source = Memory({"f": b"abc", "ignored.md": b"x", "unlisted": b"u"})

    bring(source, tmp_path / "fine", checksums=known, ignore=("*.md",))
    assert tree(tmp_path / "fine") == {"f": b"abc", "unlisted": b"u"}
    with pytest.raises(FatalError, match="names 1 files that the source lacks: 'other'"):
        bring(source, tmp_path / "refused", checksums={**known, "other": sha256(b"y")})


def test_a_file_may_become_a_directory_and_the_other_way_round(tmp_path):
    """What the last fetch put there is not in the way of the next."""
    bring(Memory({"a": b"1", "b/c": b"2"}), tmp_path)

    bring(Memory({"a/x": b"3", "b": b"4"}), tmp_path)

    assert tree(tmp_path) == {"a/x": b"3", "b": b"4"}


def test_what_was_left_whole_must_still_match_a_list_that_is_given_now(tmp_path):
    """It was proved by something else, or by nothing."""
    first = Memory({"f": b"abc", "last": b"l"}, hook=Faults(("last", 0, FatalError("stop", "stop"))))
    with pytest.raises(FatalError):
        bring(first, tmp_path, bounds=Bounds(streams=1, timeout_s=60))

    with pytest.raises(FatalError, match="twice") as caught:
        bring(Memory({"f": b"abc", "last": b"l"}), tmp_path, checksums={"f": sha256(b"other")})

    assert (caught.value.code, tree(tmp_path)) == ("checksum-differs", {})


@pytest.mark.parametrize("listed", [True, False])
def test_what_only_its_size_proved_is_fetched_again_for_more_proof(tmp_path, listed):
    """It was left whole, and damaged, by an attempt that was told not to look."""
    files = {"f": b"abc", "last": b"l"}
    last = Faults(("f", 0, b"abd"), ("last", 0, FatalError("stop", "stop")))
    with pytest.raises(FatalError):
        bring(Memory(files, hook=last), tmp_path, bounds=Bounds(streams=1, timeout_s=60), verify="size")

    known = {path: sha256(body) for path, body in files.items()}
    bring(Memory(files, checksums={} if listed else known), tmp_path, checksums=known if listed else {})

    assert files == tree(tmp_path)
