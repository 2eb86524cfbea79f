"""
What the agent and Kubeflow's own initializers make of the same variables: the same, or not and why.

`python tests/servers/kubeflow_cases.py` prints the table of the documentation; `kubeflow_contract.py` proves it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LARGE = bytes(range(256)) * 5000  # of the Hub, more than a MiB comes from its CDN
SOME = {"a.txt": b"alpha", "deep/er/b.bin": LARGE, "deep/empty": b""}
MODEL = {
    "README.md": b"# A model",
    "config.json": b"{}",
    "model.safetensors": LARGE,
    "onnx/config.json": b"{}",
    "onnx/model.onnx": b"onnx",
    "pytorch_model.bin": b"pickle",
    "tokenizer.model": b"pieces",
    "vocab.txt": b"words",
}
PICKLED = {name: body for name, body in MODEL.items() if name != "model.safetensors"}
NAMES = ("two words", "ü", "\u65e5\u672c/\U0001f600", "100%", "%20", "a+b", "<&>", "#", "?", "it's")
# Nobody listens there.
NOWHERE = "http://127.0.0.1:9"
TOKEN = "hf_reader"


@dataclass(frozen=True)
class Case:
    """
    One thing that both fetch.

    Args:
        what: in words, for the table.
        uri: STORAGE_URI; `{}` is the name of a bucket or a repository of this case's own.
        files: what is there, by key or path.
        environ: variables beside those of the servers.
        gone: what is deleted there before both fetch once more into the same directories.
        later: variables of that second time.
        same: both leave the same files.
        codes: the exit codes, ours and theirs.
        why: the reason of a difference that is deliberate; what is ordinary needs none.
    """

    what: str
    uri: str
    files: Mapping[str, bytes]
    kind: str = "dataset"
    private: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    later: Mapping[str, str] = field(default_factory=dict)
    same: bool = True
    codes: tuple[int, int] = (0, 0)
    why: str = ""


def below(prefix, files):
    """Return the same files below a prefix."""
    return {f"{prefix}/{name}": body for name, body in files.items()}


DATA = below("data", SOME)
ORDINARY = (
    Case("A prefix, with directories and an empty file", "s3://{}/data", DATA),
    Case("A prefix with a slash at its end", "s3://{}/data/", DATA),
    Case("A prefix of several directories", "s3://{}/a/b/c", below("a/b/c", SOME) | {"a/b/d": b"no", "a/e": b"no"}),
    Case("A prefix with a space and an umlaut", "s3://{}/two words/ü", below("two words/ü", SOME)),
    Case("A whole bucket", "s3://{}", SOME),
    Case("A single object", "s3://{}/a/one.bin", {"a/one.bin": b"one", "a/two.bin": b"two"}),
    Case("2,100 objects", "s3://{}/data", below("data", {f"{n:04}": str(n).encode() for n in range(2100)})),
    Case("Names that URLs must encode", "s3://{}/data", below("data", {name: name.encode() for name in NAMES})),
    Case("Markers of directories", "s3://{}/data", DATA | {"data/": b"", "data/deep/": b"", "data/none/": b""}),
    Case("`IGNORE_PATTERNS` by suffix", "s3://{}/data", DATA | {"x": b""}, environ={"IGNORE_PATTERNS": "*.bin, *.md"}),
    Case("A bucket without `REGION`", "s3://{}/data", DATA, environ={"REGION": ""}),
    Case("A model of a bucket, with whatever files", "s3://{}/model", below("model", MODEL), kind="model"),
    Case("A dataset of the Hub", "hf://org/{}", SOME | {".gitattributes": b"*.bin"}),
    Case("`ACCESS_TOKEN` for a private one", "hf://org/{}", SOME, private=True, environ={"ACCESS_TOKEN": TOKEN}),
    Case("`IGNORE_PATTERNS` of the Hub", "hf://org/{}", SOME, environ={"IGNORE_PATTERNS": "deep/er/, *.txt"}),
    Case("A model of the Hub with safetensors", "hf://org/{}", MODEL, kind="model"),
    Case("A model of the Hub in GGUF", "hf://org/{}", PICKLED | {"gguf/q4.gguf": LARGE}, kind="model"),
    Case("Less of a model", "hf://org/{}", MODEL, kind="model", environ={"IGNORE_PATTERNS": "onnx/*, *.txt"}),
)

PREFIX = "a prefix is a directory, not the beginning of names"
LITERAL = "the URI is taken as it is written"
IGNORED = "patterns match the path below the URI, as on the Hub"
EMPTY = "nothing fetched is no success"
UNDERSTOOD = "our URIs say more"
NAMED = "what is named comes, to the same place, and nothing else"
HOPELESS = "another attempt would not help"
DIFFERENT = (
    Case(
        "`s3://bucket/model` beside `model-v2/` and `model.txt`",
        "s3://{}/model",
        below("model", SOME) | below("model-v2", SOME) | {"model.txt": b"no"},
        same=False,
        why=PREFIX,
    ),
    Case(
        "`s3://bucket/model` beside an object `model`",
        "s3://{}/model",
        below("model", SOME) | {"model": b"no"},
        same=False,
        why=PREFIX,
    ),
    Case("`#` in a prefix", "s3://{}/a#b", below("a#b", SOME) | below("a", SOME), same=False, why=LITERAL),
    Case("`?` in a prefix", "s3://{}/a?b", below("a?b", SOME) | below("a", SOME), same=False, why=LITERAL),
    Case("`s3://bucket//data`", "s3://{}//data", DATA, same=False, codes=(30, 0), why=LITERAL),
    Case(
        "`IGNORE_PATTERNS=deep/*` below a prefix",
        "s3://{}/data",
        DATA,
        environ={"IGNORE_PATTERNS": "deep/*"},
        same=False,
        why=IGNORED,
    ),
    Case(
        "`IGNORE_PATTERNS=data/deep/*`, with the prefix",
        "s3://{}/data",
        DATA,
        environ={"IGNORE_PATTERNS": "data/deep/*"},
        same=False,
        why=IGNORED,
    ),
    Case(
        "`IGNORE_PATTERNS=*deep/`",
        "s3://{}/data",
        DATA,
        environ={"IGNORE_PATTERNS": "*deep/"},
        same=False,
        why="a slash at the end means everything below, as on the Hub",
    ),
    Case(
        "A key with `..` that leads out of the destination",
        "s3://{}/data",
        DATA | {"data/../outside.txt": b"outside", "outside.txt": b"outside"},
        same=False,
        codes=(30, 0),
        why="refused before the first byte",
    ),
    Case(
        "A key that is a file and the directory of others",
        "s3://{}/data",
        DATA | {"data/deep": b"no"},
        same=False,
        codes=(30, 1),
        why="refused before the first byte",
    ),
    Case(
        "A key with `//`",
        "s3://{}/data",
        DATA | {"data/deep//a": b"double", "data/deep/a": b"single"},
        same=False,
        codes=(30, 0),
        why="refused: two keys would be one file",
    ),
    Case("Nothing below the prefix", "s3://{}/none", DATA, codes=(30, 0), why=EMPTY),
    Case(
        "`IGNORE_PATTERNS` that leave nothing",
        "s3://{}/data",
        DATA,
        environ={"IGNORE_PATTERNS": "*"},
        codes=(30, 0),
        why=EMPTY,
    ),
    Case(
        "A model of the Hub without any file of a model",
        "hf://org/{}",
        {".gitattributes": b""},
        kind="model",
        codes=(30, 0),
        why=EMPTY,
    ),
    Case("A bucket that is not there", "s3://not-{}/data", DATA, codes=(30, 1), why=HOPELESS),
    Case("Half of the keys", "s3://{}/data", DATA, environ={"SECRET_ACCESS_KEY": ""}, codes=(30, 1), why=HOPELESS),
    Case("A repository that is not there", "hf://org/not-{}", SOME, codes=(30, 1), why=HOPELESS),
    Case("A private repository without a token", "hf://org/{}", SOME, private=True, codes=(30, 1), why=HOPELESS),
    Case("A scheme that nobody knows", "ftp://org/{}", SOME, codes=(30, 1), why=HOPELESS),
    Case(
        "An object is deleted, and the prefix fetched once more",
        "s3://{}/data",
        DATA,
        gone=("data/a.txt",),
        same=False,
        why="what is gone there goes here",
    ),
    Case(
        "A file of the Hub is deleted, and the dataset fetched once more",
        "hf://org/{}",
        SOME,
        gone=("a.txt",),
        same=False,
        why="what is gone there goes here",
    ),
    Case(
        "The Hub is away the second time",
        "hf://org/{}",
        SOME,
        later={"HF_ENDPOINT": NOWHERE, "TRAINER_AGENT_INIT_DATASET_TIMEOUT": "3"},
        codes=(20, 0),
        why="nobody knows whether this is what is wanted; `HF_HUB_OFFLINE=1` allows it",
    ),
    Case(
        "A model of the Hub without safetensors and GGUF",
        "hf://org/{}",
        PICKLED | {"training_args.bin": b"no"},
        kind="model",
        same=False,
        why="a model comes with its weights",
    ),
    Case("`hf://org/name@revision`", "hf://org/{}@main", SOME, same=False, codes=(0, 1), why=UNDERSTOOD),
    Case("`hf://org/name/directory`, a dataset", "hf://org/{}/deep", SOME, same=False, why=NAMED),
    Case(
        "`hf://org/name/directory`, a model",
        "hf://org/{}/onnx",
        MODEL,
        kind="model",
        same=False,
        codes=(0, 1),
        why=UNDERSTOOD,
    ),
    Case("`hf://name`, a dataset", "hf://{}", SOME, same=False, codes=(0, 1), why=UNDERSTOOD),
    Case("`hf://datasets/org/name`", "hf://datasets/org/{}", SOME, same=False, codes=(0, 1), why=UNDERSTOOD),
)
CASES = ORDINARY + DIFFERENT


@dataclass(frozen=True)
class Outcome:
    """What became of a case, or what is promised to."""

    same: bool
    codes: tuple[int, int]


def promised(case):
    """Return what is to become of a case."""
    return Outcome(case.same, case.codes)


def table(outcomes: Iterable[Outcome]):
    """Yield the lines of the table of all cases."""
    yield "| What is fetched | Same files | Exit code | Kubeflow's | Why |"
    yield "| --- | --- | --- | --- | --- |"
    for case, outcome in zip(CASES, outcomes, strict=True):
        ours, theirs = outcome.codes
        yield f"| {case.what} | {'yes' if outcome.same else '**no**'} | {ours} | {theirs} | {case.why} |"


if __name__ == "__main__":
    print("\n".join(table(map(promised, CASES))))
