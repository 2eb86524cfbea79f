"""Patterns mean what they mean to Kubeflow's initializers and to huggingface_hub."""

import pytest
from huggingface_hub.utils import filter_repo_objects
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.initializers import Entry
from trainer_agent.initializers.patterns import leaves_out, matcher, select

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

# What transformers, accelerate and DeepSpeed save beside a model.
LEFT = [
    "training_args.bin",
    "trainer_state.json",
    "optimizer.pt",
    "optimizer.bin",
    "optimizer_1.bin",
    "scheduler.pt",
    "scheduler.bin",
    "scaler.pt",
    "sampler.bin",
    "dl_state_dict.bin",
    "rng_state.pth",
    "rng_state_3.pth",
    "random_states_0.pkl",
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
]
PT = "*.pt, *.pth (2)"
# Those of its initializers of models, where the user gives none.
SDK = ["*.msgpack", "*.h5", "*.bin", "*.pt", "*.pth"]
NONE = "no weights here (*.safetensors, *.gguf, *.bin, *.pt, *.pth, *.msgpack, *.h5); --allow-patterns brings others"


def of_hub(paths, **more):
    return chosen(paths, kind="model", scheme="hf", **more)


def chosen(paths, *, allow=None, ignore=(), kind="dataset", scheme="s3"):
    entries = [Entry(path, 1, path) for path in paths]
    found, why = select(entries, allow=allow, ignore=ignore, kind=kind, scheme=scheme)
    return [entry.path for entry in found], why


@given(names=st.lists(NAMES, max_size=8), allow=PATTERNS, ignore=PATTERNS)
def test_patterns_mean_what_they_mean_to_the_hub(names, allow, ignore):
    wanted = list(filter_repo_objects(names, allow_patterns=allow, ignore_patterns=ignore))

    assert (wanted, "") == of_hub(names, allow=allow, ignore=ignore)


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

    assert (wanted, "") == of_hub(MODEL)


def test_patterns_of_ones_own_replace_the_defaults():
    assert (["README.md"], "") == of_hub(MODEL, allow=["*.md"])


@pytest.mark.parametrize(
    "weights,taken,patterns",
    [
        (["b.bin", "a.bin", "p.pt", "f.msgpack", "t.h5"], ["b.bin", "a.bin"], "*.bin (2)"),
        (["p.pt", "original/consolidated.00.pth", "f.msgpack"], ["p.pt", "original/consolidated.00.pth"], PT),
        (["f.msgpack", "t.h5"], ["f.msgpack"], "*.msgpack (1)"),
        (["deep/t.h5"], ["deep/t.h5"], "*.h5 (1)"),
        (["openvino/openvino_model.bin", "p.pt", "q.pth"], ["p.pt", "q.pth"], PT),
    ],
)
def test_a_model_never_comes_without_its_weights(weights, taken, patterns):
    """Where there is neither safetensors nor GGUF, the first of the other forms comes, and a sentence says so."""
    why = f"no safetensors or GGUF here: the weights are {patterns}"

    assert (["config.json", *taken], why) == of_hub(["config.json", *weights])


@pytest.mark.parametrize(
    "weights",
    [
        ["pytorch_model.bin"],
        ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"],
        ["adapter_model.bin"],
        ["unet/diffusion_pytorch_model.fp16.bin", "text_encoder/pytorch_model.bin"],
        ["ggml-base.bin"],
    ],
)
@pytest.mark.parametrize("directory", ["", "checkpoint-500/"])
def test_what_a_trainer_left_is_no_weights(weights, directory):
    """The state of an optimizer is twice as large as the model, and nobody starts from it."""
    left = [directory + name for name in LEFT]

    taken, why = of_hub([*left, *weights])

    assert ([f"{directory}trainer_state.json", *weights], f"the weights are *.bin ({len(weights)})") == (
        taken,
        why.rpartition(": ")[2],
    )


@pytest.mark.parametrize("others", [LEFT, ["onnx/model.onnx", "onnx/model.onnx_data"], ["openvino_model.bin"], []])
def test_a_model_without_weights_is_told(others):
    """It comes as it is: a tokenizer is fetched so."""
    json = [name for name in ["config.json", *others] if name.endswith(".json")]

    assert (json, NONE) == of_hub(["config.json", *others])


@pytest.mark.parametrize("weights", ["model.safetensors", "model-q4.gguf"])
def test_other_weights_stay_where_there_are_good_ones(weights):
    assert ([weights], "") == of_hub([weights, "pytorch_model.bin", "training_args.bin"])


@pytest.mark.parametrize(
    "weights,ignore,forms",
    [
        (["a.bin", "b.bin"], SDK, "*.bin (2)"),
        (["original/consolidated.00.pth"], SDK, "*.pt, *.pth (1)"),
        (["a.bin", "b.safetensors"], ["*.bin", "*.safetensors"], "*.safetensors, *.gguf (1)"),
    ],
)
@pytest.mark.parametrize("scheme", ["hf", "s3"])
def test_ignored_weights_stay_and_are_told(weights, ignore, forms, scheme):
    """Kubeflow's SDK sends its patterns where the user has not chosen any."""
    why = f"no weights come: IGNORE_PATTERNS leave out {forms}"

    assert (["config.json"], why) == chosen(["config.json", *weights], ignore=ignore, kind="model", scheme=scheme)


def test_what_has_no_weights_anyhow_misses_none():
    assert (["config.json"], "") == chosen(["config.json"], ignore=SDK, kind="model", scheme="s3")


@pytest.mark.parametrize(
    "allow,ignore,left_out",
    [
        (None, ["out/*"], True),
        (None, ["*.md", "out/"], True),
        (None, ["out*"], True),
        (None, ["*/*"], True),
        (None, ["*"], True),
        (None, [], False),
        (None, ["out"], False),
        (None, ["out/*.bin"], False),
        (None, ["out/?"], False),
        (None, ["out/x*"], False),
        (None, ["out2/*"], False),
        (["in/*"], [], True),
        (["in/*", "README.md"], [], True),
        (["out2/*"], [], True),
        ([], [], True),
        (["in/*", "*.md"], [], False),
        (["o*"], [], False),
        (["out/deep/*.bin"], [], False),
    ],
)
def test_what_surely_is_left_out(allow, ignore, left_out):
    """Whatever may come to lie there."""
    assert left_out == leaves_out("out/", allow=allow, ignore=ignore)


@pytest.mark.parametrize(
    "allow,ignore,left_out",
    [
        (None, ["*.lock"], True),
        (None, ["*.md"], False),
        (["*.md"], [], True),
        (["a/*"], [], False),
        (["a/*"], ["*.lock"], True),
    ],
)
def test_what_file_is_left_out(allow, ignore, left_out):
    assert left_out == leaves_out("a/b.lock", allow=allow, ignore=ignore)


@pytest.mark.parametrize("ignore,left_out", [(["*"], True), ([".*"], False), (["out/*"], False)])
def test_what_leaves_out_the_whole_source(ignore, left_out):
    assert left_out == leaves_out("", allow=None, ignore=ignore)


@given(
    directory=st.text("ab.[", max_size=2).map(lambda name: f"{name}/" if name else ""),
    name=NAMES,
    allow=st.none() | PATTERNS,
    ignore=PATTERNS,
)
def test_nothing_is_wanted_where_all_is_left_out(directory, name, allow, ignore):
    """By the definition."""
    if leaves_out(directory, allow=allow, ignore=ignore):
        entry = Entry(f"{directory}{name}", 1, "")
        assert ([], "") == select([entry], allow=allow, ignore=ignore, kind="dataset", scheme="file")
