"""file://"""

import os

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.host import Host
from trainer_agent.initializers import ChangedError, open_source
from trainer_agent.initializers.delivery import Order
from trainer_agent.initializers.fetch import Bounds, fetch


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


@pytest.mark.parametrize("target, why", [("nowhere", "which does not exist"), (".", "which it lies in")])
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


def test_a_volume_of_a_config_map_has_each_file_once(tree, tmp_path):
    """The kubelet keeps the files beside the links to them."""
    source = tmp_path / "source"
    (source / "..2026_11_22_01_02_03.4").mkdir(parents=True)
    (source / "..2026_11_22_01_02_03.4" / "key").write_bytes(b"value")
    (source / "..data").symlink_to("..2026_11_22_01_02_03.4")
    (source / "key").symlink_to("..data/key")

    bring(f"file://{source}", tmp_path / "out")

    assert tree(tmp_path / "out") == {"key": b"value"}


def test_a_single_file(tree, tmp_path):
    """A URI may name one file."""
    (tmp_path / "one.bin").write_bytes(b"one")

    bring(f"file://{tmp_path}/one.bin", tmp_path / "out")

    assert tree(tmp_path / "out") == {"one.bin": b"one"}


def test_a_destination_of_ours_is_a_source_too(tree, tmp_path):
    """Its record and lock are no data."""
    (tmp_path / "one.bin").write_bytes(b"one")
    bring(f"file://{tmp_path}/one.bin", tmp_path / "first")

    bring(f"file://{tmp_path}/first", tmp_path / "second")

    assert tree(tmp_path / "second") == {"one.bin": b"one"}


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
