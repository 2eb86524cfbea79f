"""file://"""

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.initializers import open_source
from trainer_agent.initializers.fetch import fetch


def test_a_directory_is_copied_whole(tree, tmp_path):
    """Every file keeps its place."""
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "a").write_bytes(b"1" * 3_000_000)
    (source / "deep" / "b").write_bytes(b"")

    fetch(open_source(f"file://{source}", {}), tmp_path / "out")

    assert tree(tmp_path / "out") == tree(source)


def test_a_single_file(tree, tmp_path):
    """A URI may name one file."""
    (tmp_path / "one.bin").write_bytes(b"one")

    fetch(open_source(f"file://{tmp_path}/one.bin", {}), tmp_path / "out")

    assert tree(tmp_path / "out") == {"one.bin": b"one"}


def test_a_missing_path_is_fatal(tmp_path):
    """The message names the path."""
    with pytest.raises(FatalError, match=f"{tmp_path}/none does not exist"):
        fetch(open_source(f"file://{tmp_path}/none", {}), tmp_path / "out")
