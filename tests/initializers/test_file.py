"""file://"""

import os
import re
import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.host import Host
from trainer_agent.initializers import HIDDEN, ChangedError, TransientError, open_source
from trainer_agent.initializers import file as module
from trainer_agent.initializers.disk import kind_of
from trainer_agent.initializers.fetch import Bounds, fetch
from trainer_agent.initializers.order import Order
from trainer_agent.initializers.patterns import leaves_out
from trainer_agent.isolation import contained


def bring(uri, destination):
    return fetch([Order("dataset", open_source(uri, {}), destination)], host=Host(), bounds=Bounds(timeout_s=60))


def test_a_directory_is_copied_whole(tree, tmp_path):
    """Every file keeps its place."""
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "a").write_bytes(b"1" * 3_000_000)
    (source / "deep" / "b").write_bytes(b"")

    bring(f"file://{source}", tmp_path / "out")

    assert tree(tmp_path / "out") == tree(source)


def test_links_are_followed(tree, tmp_path):
    """To files and directories, inside and outside, as `cp -rL` does."""
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    (source / "deep").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "b").write_bytes(b"b")
    (source / "train").symlink_to(elsewhere)
    (source / "deep" / "again").symlink_to(source / "train")
    (source / "c").symlink_to("train/b")

    bring(f"file://{source}", tmp_path / "out")

    assert tree(tmp_path / "out") == {"train/b": b"b", "deep/again/b": b"b", "c": b"b"}


@pytest.mark.parametrize("target, why", [("nowhere", "which does not exist"), (".", "which leads back to it")])
def test_a_link_that_leads_to_no_data_is_named(tmp_path, target, why):
    """Nothing is left out without a word."""
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "a").write_bytes(b"a")
    (source / "deep" / "link").symlink_to(source / target)

    with pytest.raises(FatalError) as refused:
        bring(f"file://{source}", tmp_path / "out")

    message = f"{source}/deep/link is a link to {source / target}, {why}"
    assert ("source-link-unusable", message) == (refused.value.code, refused.value.message)


def test_links_that_lead_in_a_circle_are_named(tmp_path):
    """Each of them alone leads to data."""
    source = tmp_path / "source"
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        (source / name).mkdir(parents=True)
        (source / name / "file").write_bytes(b"x")
        (source / name / "next").symlink_to(source / other)

    with pytest.raises(FatalError) as refused:
        bring(f"file://{source}", tmp_path / "out")

    [(link, target)] = re.findall(r"(\S+) is a link to (\S+), which leads back to it$", refused.value.message)
    assert refused.value.code == "source-link-unusable"
    assert Path(link).resolve() == Path(target)
    assert link.count("/next") == 3


@pytest.mark.parametrize("way,name", [("source", "out"), ("l", "l/out")])
def test_a_destination_is_kept_out(tmp_path, way, name):
    """Which the root leads to, or a link; whatever is left out is no matter."""
    place = tmp_path / "source" / "out"
    place.mkdir(parents=True)
    root = tmp_path / "source" if way == "source" else tmp_path / "links"
    if way == "l":
        root.mkdir()
        (root / "l").symlink_to(tmp_path / "source")
    asked = []

    def listed(*, left_out):
        source = open_source(f"file://{root}", {})
        source.keep_out([tmp_path / "elsewhere", place], left_out=lambda name: asked.append(name) or left_out)
        return list(source.entries())

    assert ([], [f"{name}/"]) == (listed(left_out=True), asked)
    with pytest.raises(FatalError) as refused:
        listed(left_out=False)

    by = f" as {name}" if way == "l" else ""
    assert "output-path-in-source" == refused.value.code
    assert (
        f"OUTPUT_PATH={place} is part of file://{root}{by}, and would be fetched into itself" == refused.value.message
    )


def test_a_volume_of_a_config_map_has_each_file_once(tree, tmp_path):
    """The kubelet keeps the files beside the links to them."""
    source = tmp_path / "source"
    (source / "..2026_11_22_01_02_03.4").mkdir(parents=True)
    (source / "..2026_11_22_01_02_03.4" / "key").write_bytes(b"value")
    (source / "..data").symlink_to("..2026_11_22_01_02_03.4")
    (source / "key").symlink_to("..data/key")

    bring(f"file://{source}", tmp_path / "out")

    assert tree(tmp_path / "out") == {"key": b"value"}


@pytest.mark.parametrize("link", [False, True])
def test_what_fsck_keeps_in_a_volume_is_no_data(tmp_path, monkeypatch, link):
    """Only root may look there; elsewhere it is a name like any other."""
    for folder in ("lost+found", "deep/lost+found"):
        (tmp_path / "volume" / folder).mkdir(parents=True)
        (tmp_path / "volume" / folder / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to("volume")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "volume"))

    entries = open_source(f"file://{tmp_path}/{'link' if link else 'volume'}", {}).entries()

    assert ["deep/lost+found/f"] == [entry.path for entry in entries]


def test_a_single_file(tree, tmp_path):
    """A URI may name one file."""
    (tmp_path / "one.bin").write_bytes(b"one")

    bring(f"file://{tmp_path}/one.bin", tmp_path / "out")

    assert tree(tmp_path / "out") == {"one.bin": b"one"}


@pytest.mark.parametrize("below", ["first", ""])
def test_a_destination_of_ours_is_a_source_too(tree, tmp_path, below):
    """Its record and lock are no data, and whoever fills it may be changing them."""
    (tmp_path / "one.bin").write_bytes(b"one")
    bring(f"file://{tmp_path}/one.bin", tmp_path / "all" / "first")

    bring(f"file://{tmp_path}/all/{below}", tmp_path / "second")

    assert tree(tmp_path / "second") == {f"{'' if below else 'first/'}one.bin": b"one"}
    assert list((tmp_path / "second").rglob(HIDDEN)) == [tmp_path / "second" / HIDDEN]


def test_ranges_are_those_of_the_file(tmp_path):
    """As any source's."""
    (tmp_path / "f").write_bytes(bytes(range(256)) * 4000)
    source = open_source(f"file://{tmp_path}", {})
    [entry] = source.entries()

    assert b"".join(map(bytes, source.read(entry, 100, 900_000))) == (bytes(range(256)) * 4000)[100:900_000]
    assert source.checksum(entry) == ""


@pytest.mark.parametrize("change", ["rewritten", "replaced"])
def test_a_change_after_the_listing_is_told(tmp_path, change):
    """Half of the old and half of the new is neither."""
    (tmp_path / "f").write_bytes(b"old")
    source = open_source(f"file://{tmp_path}", {})
    [entry] = source.entries()
    if change == "replaced":
        (tmp_path / "g").write_bytes(b"new")
        (tmp_path / "g").replace(tmp_path / "f")
    else:
        (tmp_path / "f").write_bytes(b"new")
        os.utime(tmp_path / "f", (5, 5))

    with pytest.raises(ChangedError, match="changed after it was listed"):
        list(source.read(entry, 0, 3))


def test_another_inode_is_no_change_where_they_do_not_stay(tmp_path, monkeypatch):
    """There, the kernel forgets a file, and finds it again under another number."""
    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(module, "RENUMBERING", frozenset({kind_of(folder)}))
    os.close(folder)
    (tmp_path / "f").write_bytes(b"old")
    source = open_source(f"file://{tmp_path}/f", {})
    [entry] = source.entries()
    shutil.copy2(tmp_path / "f", tmp_path / "g")
    (tmp_path / "g").replace(tmp_path / "f")

    assert list(source.entries()) == [entry]
    assert list(source.read(entry, 0, 3)) == [b"old"]


def test_a_change_while_it_is_read_is_told(tmp_path):
    """At once: of a range that another stream takes over, nobody reads the end."""
    (tmp_path / "f").write_bytes(b"old" * 500_000)
    source = open_source(f"file://{tmp_path}", {})
    [entry] = source.entries()
    pieces = source.read(entry, 0, 1_500_000)
    next(pieces)
    with (tmp_path / "f").open("r+b") as file:
        file.write(b"new")
    os.utime(tmp_path / "f", (5, 5))

    with pytest.raises(ChangedError, match="changed after it was listed"):
        next(pieces)


def test_a_file_that_has_become_shorter_has_changed(tmp_path):
    """Its end is not waited for."""
    (tmp_path / "f").write_bytes(b"old")
    source = open_source(f"file://{tmp_path}", {})
    [entry] = source.entries()
    os.truncate(tmp_path / "f", 0)
    os.utime(tmp_path / "f", ns=(0, (tmp_path / "f").stat().st_mtime_ns))

    with pytest.raises(ChangedError, match="changed after it was listed"):
        list(source.read(entry, 0, 3))


def test_a_file_that_is_gone_may_come_back(tmp_path):
    """As where a file server is restarted; the frame counts the attempts."""
    (tmp_path / "f").write_bytes(b"old")
    source = open_source(f"file://{tmp_path}", {})
    [entry] = source.entries()
    (tmp_path / "f").unlink()

    with pytest.raises(TransientError) as caught:
        list(source.read(entry, 0, 3))

    assert ("source-unavailable", f"{tmp_path}/f cannot be read: No such file or directory") == (
        caught.value.code,
        caught.value.message,
    )


def test_nothing_comes_after_the_end(tmp_path):
    """Whatever is asked for."""
    (tmp_path / "f").write_bytes(b"old")
    source = open_source(f"file://{tmp_path}", {})
    [entry] = source.entries()

    assert list(source.read(entry, 1, 9)) == [b"ld"]


@pytest.fixture
def open_place():
    """Return a directory that every user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_this_user_may_not_look_at_is_the_sources_fault(open_place):
    """A directory that can be listed and not entered; the destination has nothing to do with it."""
    source = open_place / "source"
    source.mkdir()
    (source / "f").write_bytes(b"x")
    source.chmod(0o744)

    def listed():
        os.setuid(1000)
        return list(open_source(f"file://{source}", {}).entries())

    with pytest.raises(FatalError, match=f"{source}/f cannot be read: Permission denied") as refused:
        contained(listed, grace_s=1.0, timeout_s=20.0)

    assert refused.value.code == "source-refused"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("ignore,allow", [(["private/*"], None), ([], ["open/*"])])
def test_what_is_left_out_need_not_be_readable(open_place, ignore, allow):
    """Another user's directory in a shared volume."""
    for name in ("open", "private"):
        (open_place / name).mkdir()
        (open_place / name / "f").write_bytes(b"x")
    (open_place / "private").chmod(0o700)

    def listed():
        os.setuid(1000)
        source = open_source(f"file://{open_place}", {})
        source.keep_out([], left_out=partial(leaves_out, ignore=ignore, allow=allow))
        return [entry.path for entry in source.entries()]

    assert ["open/f"] == contained(listed, grace_s=1.0, timeout_s=20.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_source_that_may_not_be_listed_is_refused_whatever_is_left_out(open_place):
    """Nothing is known of it."""
    source = open_place / "source"
    source.mkdir(mode=0o700)

    def listed():
        os.setuid(1000)
        opened = open_source(f"file://{source}", {})
        opened.keep_out([], left_out=partial(leaves_out, ignore=[], allow=["open/*"]))
        return list(opened.entries())

    with pytest.raises(FatalError, match=f"{source} cannot be read: Permission denied"):
        contained(listed, grace_s=1.0, timeout_s=20.0)


def test_a_missing_path_is_fatal(tmp_path):
    """The message names the path."""
    with pytest.raises(FatalError, match=f"{tmp_path}/none does not exist"):
        bring(f"file://{tmp_path}/none", tmp_path / "out")


@pytest.mark.parametrize("uri", ["", "bucket/x", "s3://", "ftp://x/y", "file:///"])
def test_uris_that_nobody_understands(uri):
    """The message shows the value and what would be right."""
    with pytest.raises(FatalError) as caught:
        open_source(uri, {})

    assert caught.value.message == f"STORAGE_URI={uri!r} is not one of file://…, s3://…, hf://…, cache://…"
