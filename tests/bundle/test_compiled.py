"""Bytecode for places whose time stamps nobody knows."""

import importlib.util
import marshal
import os
import py_compile

import pytest

from trainer_agent.bundle.compiled import HEAD_BYTES, compiled_of


def value_in(data):
    """Run bytecode that sets `value`."""
    names = {}
    exec(marshal.loads(data[HEAD_BYTES:]), names)  # what was compiled here
    return names["value"]


@pytest.fixture
def source(tmp_path):
    """Return a module, and its bytecode as Python itself leaves it beside it."""
    path = tmp_path / "module.py"
    path.write_text("value = 1")
    py_compile.compile(str(path), doraise=True)
    return path


def test_it_is_valid_whenever_the_source_was_written(source, tmp_path):
    """Python takes it without looking at the time stamp or the text of its source."""
    data = compiled_of(source, source.read_bytes())
    place = tmp_path / "copy" / "module.py"
    cached = tmp_path / importlib.util.cache_from_source(str(place))
    cached.parent.mkdir(parents=True)
    cached.write_bytes(data)
    place.write_text("value = 'read from the source'")
    spec = importlib.util.spec_from_file_location("module", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert 1 == module.value


def test_what_python_compiled_before_is_taken(source):
    """Only the head changes."""
    kept = (source.parent / importlib.util.cache_from_source(source.name)).read_bytes()

    assert kept[HEAD_BYTES:] == compiled_of(source, source.read_bytes())[HEAD_BYTES:]


@pytest.mark.parametrize("text,mtime", [("value = 2", 1), ("value = 22", None)])
def test_what_is_stale_is_compiled_again(source, text, mtime):
    """By the time stamp and the size."""
    before = source.stat().st_mtime
    source.write_text(text)
    os.utime(source, (0, mtime or before))

    assert eval(text.split("=")[1]) == value_in(compiled_of(source, source.read_bytes()))


def test_what_does_not_compile_has_none(source):
    """Templates that end in .py, and syntax of later versions."""
    source.write_text("value = {{ name }} {")
    os.utime(source, (0, 0))

    assert compiled_of(source, source.read_bytes()) is None
