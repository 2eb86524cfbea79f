"""Patterns mean what they mean to Kubeflow's initializers and to huggingface_hub."""

import pytest
from huggingface_hub.utils import filter_repo_objects
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.initializers import Entry
from trainer_agent.initializers.patterns import matcher, select

NAMES = st.text("ab/.", min_size=1, max_size=6)
PATTERNS = st.lists(st.text("ab/.*?[]!\n", min_size=1, max_size=5), max_size=3)
MODEL = [
    ".gitattributes",
    "README.md",
    "config.json",
    "model.safetensors",
    "onnx/config.json",
    "onnx/model.onnx",
    "tokenizer.model",
    "vocab.txt",
]


def chosen(paths, *, allow=None, ignore=(), kind="dataset", scheme="s3"):
    entries = [Entry(path, 1, path) for path in paths]
    found, why = select(entries, allow=allow, ignore=ignore, kind=kind, scheme=scheme)
    return [entry.path for entry in found], why


@given(names=st.lists(NAMES, max_size=8), allow=PATTERNS, ignore=PATTERNS)
def test_patterns_mean_what_they_mean_to_the_hub(names, allow, ignore):
    wanted = list(filter_repo_objects(names, allow_patterns=allow, ignore_patterns=ignore))

    assert (wanted, "") == chosen(names, allow=allow, ignore=ignore, kind="model", scheme="hf")


@pytest.mark.parametrize(
    "pattern,matching",
    [
        ("*.json", ["a.json", "deep/er/a.json"]),
        ("deep/", ["deep/er/a.json", "deep/b"]),
        ("deep/*", ["deep/er/a.json", "deep/b"]),
        ("deep", []),
        ("a.jso[mn]", ["a.json"]),
        ("?.json", ["a.json"]),
        ("A.JSON", []),
        ("*", ["a.json", "deep/er/a.json", "deep/b", "line\nbreak"]),
        ("line*", ["line\nbreak"]),
        ("", []),
    ],
)
def test_a_star_crosses_directories_and_lines(pattern, matching):
    matches = matcher([pattern])

    assert matching == [n for n in ["a.json", "deep/er/a.json", "deep/b", "line\nbreak"] if matches(n)]


@pytest.mark.parametrize("kind,scheme", [("dataset", "hf"), ("dataset", "s3"), ("model", "s3"), ("model", "file")])
def test_by_default_everything_comes(kind, scheme):
    """Only of a model of the Hub not."""
    assert (MODEL, "") == chosen(MODEL, kind=kind, scheme=scheme)


def test_ignored_files_do_not_come():
    assert (["README.md"], "") == chosen(["README.md", "a.bin", "b/c.bin"], ignore=["*.bin"])
    assert (["a.bin"], "") == chosen(["README.md", "a.bin", "b/c.bin"], allow=["*.bin"], ignore=["b/"])


def test_of_a_model_of_the_hub_comes_what_kubeflow_takes():
    wanted = ["config.json", "model.safetensors", "onnx/config.json", "tokenizer.model", "vocab.txt"]

    assert (wanted, "") == chosen(MODEL, kind="model", scheme="hf")


def test_patterns_of_ones_own_replace_the_defaults():
    assert (["README.md"], "") == chosen(MODEL, allow=["*.md"], kind="model", scheme="hf")


@pytest.mark.parametrize(
    "weights,taken,patterns",
    [
        (["b.bin", "a.bin", "p.pt", "f.msgpack", "t.h5"], ["b.bin", "a.bin"], "2 files of *.bin"),
        (["p.pt", "q.pth", "f.msgpack", "t.h5"], ["p.pt", "q.pth"], "2 files of *.pt, *.pth"),
        (["f.msgpack", "t.h5"], ["f.msgpack"], "1 files of *.msgpack"),
        (["deep/t.h5"], ["deep/t.h5"], "1 files of *.h5"),
    ],
)
def test_a_model_never_comes_without_its_weights(weights, taken, patterns):
    """Where there is neither safetensors nor GGUF, the first of the other forms comes, and a sentence says so."""
    why = f"no safetensors or GGUF here, so the weights are the {patterns}"

    assert (["config.json", *taken], why) == chosen(["config.json", *weights], kind="model", scheme="hf")


@pytest.mark.parametrize("weights", ["model.safetensors", "model-q4.gguf"])
def test_other_weights_stay_where_there_are_good_ones(weights):
    assert ([weights], "") == chosen([weights, "pytorch_model.bin"], kind="model", scheme="hf")


def test_ignored_weights_are_not_missed():
    """A user who ignores them has chosen."""
    ignore = ["*.bin", "*.safetensors"]

    assert (["config.json"], "") == chosen(
        ["config.json", "a.bin", "b.safetensors"], ignore=ignore, kind="model", scheme="hf"
    )
