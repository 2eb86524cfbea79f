"""`init` as users run it."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import pytest


def started(*args, env):
    """Run the program."""
    return subprocess.run(
        [sys.executable, "-m", "trainer_agent", "init", *args],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run(*args, env):
    """Run the program; return its exit code, and its log as a list of dicts."""
    done = started(*args, env=env)
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()], done


@pytest.mark.parametrize("kind", ["dataset", "model"])
def test_kubeflow_variables_are_enough(s3, tree, tmp_path, kind):
    """STORAGE_URI, OUTPUT_PATH, IGNORE_PATTERNS and the credentials, as Kubeflow's initializers read them."""
    env = {
        **s3,
        "STORAGE_URI": "s3://bucket/data",
        "OUTPUT_PATH": str(tmp_path / kind),
        "IGNORE_PATTERNS": "*.bin,with*",
        # Names that anybody may have given to something else.
        "VERIFY": "true",
        "CHECKSUMS": "yes",
        "ALLOW_PATTERNS": "nothing",
    }

    code, log, done = run(kind, env=env)

    assert (code, log[-1]["event"], log[-1]["files"]) == (0, "fetched", 2)
    assert tree(tmp_path / kind) == {"a.txt": b"alpha", "empty": b""}
    assert s3["SECRET_ACCESS_KEY"] not in done.stdout + done.stderr


def test_all_fetches_both(s3, tree, tmp_path):
    """Each has variables of its own."""
    env = {
        **s3,
        "TRAINER_AGENT_INIT_DATASET_STORAGE_URI": "s3://bucket/single.bin",
        "TRAINER_AGENT_INIT_DATASET_OUTPUT_PATH": str(tmp_path / "dataset"),
        "TRAINER_AGENT_INIT_MODEL_STORAGE_URI": "s3://bucket/data2.txt",
        "TRAINER_AGENT_INIT_MODEL_OUTPUT_PATH": str(tmp_path / "model"),
    }

    code, _, _ = run("all", env=env)

    assert code == 0
    assert tree(tmp_path) == {"dataset/single.bin": b"one object", "model/data2.txt": b"not mine either"}


@pytest.mark.parametrize("kind", ["dataset", "all"])
@pytest.mark.parametrize("uri", ["s3://bucket/nothing", "s3://bucket/data?X-Amz-Signature=SECRET_ACCESS_KEY", ""])
def test_a_pod_says_why_it_fetched_nothing(s3, tmp_path, kind, uri):
    """In the termination message, which outlives the log, and never a secret."""
    told = tmp_path / "termination-log"
    uri = uri.replace("SECRET_ACCESS_KEY", s3["SECRET_ACCESS_KEY"])
    variables = {"OUTPUT_PATH": str(tmp_path / "to"), "STORAGE_URI": uri, "TERMINATION_LOG": str(told)}
    names = {
        "STORAGE_URI": "TRAINER_AGENT_INIT_DATASET_STORAGE_URI",
        "OUTPUT_PATH": "TRAINER_AGENT_INIT_DATASET_OUTPUT_PATH",
    }
    names = names if kind == "all" else {}
    names |= {"TERMINATION_LOG": f"TRAINER_AGENT_INIT_{kind.upper()}_TERMINATION_LOG"}

    code, log, _ = run(kind, env=s3 | {names.get(name, name): value for name, value in variables.items()})

    last = log[-1]
    expected = {"exit_code": 30, "code": last["code"], "reason": last["event"], "hint": last["hint"]}
    assert (30, expected) == (code, json.loads(told.read_text()))
    assert s3["SECRET_ACCESS_KEY"] not in told.read_text()


@pytest.mark.lab
def test_a_list_without_an_end_ends_with_the_timeout(tmp_path):
    """The server sends a byte now and then, so no read of its answer ever stalls."""
    with socket.create_server(("127.0.0.1", 0)) as listener, dripping(listener):
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        env = {"STORAGE_URI": "s3://bucket/data", "OUTPUT_PATH": str(tmp_path / "to"), "ENDPOINT": endpoint}
        keys = {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "key"}
        code, log, _ = run("dataset", "--timeout", "1", env=env | keys)

    assert (code, log[-1]["code"]) == (20, "fetch-timeout")


@contextmanager
def dripping(listener):
    """Answer whoever asks with a body that never ends."""
    over = threading.Event()

    def drip():
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not over.wait(0.2):
                    connection.sendall(b" ")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(5)


def test_a_hostile_name_writes_nothing(s3, tree, tmp_path):
    """A key with `..` in it ends the fetch with its exit code, not with a file outside."""
    env = {**s3, "STORAGE_URI": "s3://bucket/hostile", "OUTPUT_PATH": str(tmp_path / "a" / "b")}

    code, log, _ = run("dataset", env=env)

    assert code in (20, 30)
    assert log[-1]["level"] == "error"
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    "below,refused",
    [("", True), ("dataset", True), ("deep/er", True), ("link", True), ("../outside", False), ("../source2", False)],
)
def test_nothing_is_fetched_into_itself(tree, tmp_path, below, refused):
    """Each run would find the files of the one before, and make another copy of them."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(b"a")
    if below == "link":
        (tmp_path / "elsewhere").symlink_to(source)
        below = "../elsewhere/dataset"
    to = str(source / below)

    code, log, _ = run("dataset", "--storage-uri", f"file://{source}", "--output-path", to, env={})

    if refused:
        assert (code, log[-1]["code"]) == (30, "output-path-in-source")
        assert log[-1]["event"] == f"OUTPUT_PATH={to} is part of file://{source}, and would be fetched into itself"
    else:
        assert code == 0
    assert tree(source) == {"a": b"a"}


@pytest.mark.parametrize("option", ["--ignore-patterns=out/*", "--allow-patterns=in/*"])
def test_a_destination_that_patterns_leave_out_is_no_part_of_the_source(tree, tmp_path, option):
    """However often."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b").write_bytes(b"b")
    place = ["--storage-uri", f"file://{tmp_path}", "--output-path", str(tmp_path / "out")]

    assert [0, 0] == [run("dataset", *place, option, env={})[0] for _ in range(2)]
    assert {"in/b": b"b", "out/in/b": b"b"} == tree(tmp_path)


def test_a_pattern_that_would_leave_out_the_destination_is_told(tmp_path):
    """One that does not leave out all of it is none."""
    to = tmp_path / "deep" / "out"
    place = ["--storage-uri", f"file://{tmp_path}", "--output-path", str(to), "--ignore-patterns", "deep/out,*.md"]

    code, log, _ = run("dataset", *place, env={})

    assert (30, "output-path-in-source") == (code, log[-1]["code"])
    assert log[-1]["hint"].endswith(", or add deep/out/* to IGNORE_PATTERNS")
    assert not to.exists()


@pytest.mark.parametrize("ignore,refused", [("", True), ("l/out/*", False)])
def test_a_link_to_what_the_destination_is_part_of_is_refused(tree, tmp_path, ignore, refused):
    """Each run would fetch what the one before has fetched, by that link."""
    for name in ("source", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(b"f")
    (tmp_path / "source" / "l").symlink_to(tmp_path / "data")
    to = tmp_path / "data" / "out"
    place = ["--storage-uri", f"file://{tmp_path}/source", "--output-path", str(to), "--ignore-patterns", ignore]

    for _ in range(2):
        code, log, _ = run("dataset", *place, env={})
        if refused:
            message = f"OUTPUT_PATH={to} is part of file://{tmp_path}/source as l/out, and would be fetched into itself"
            assert (30, "output-path-in-source", message) == (code, log[-1]["code"], log[-1]["event"])
            assert {} == tree(to)
        else:
            assert (0, {"f": b"f", "l/f": b"f"}) == (code, tree(to))


@pytest.mark.parametrize("target", ["nowhere", "."])
def test_a_link_that_leads_to_no_data_may_be_left_out(tree, tmp_path, target):
    """As the hint says."""
    source, to = tmp_path / "source", tmp_path / "out"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "f").write_bytes(b"f")
    (source / "deep" / "link").symlink_to(source / target)
    place = ["--storage-uri", f"file://{source}", "--output-path", str(to)]

    code, log, _ = run("dataset", *place, env={})
    assert (30, "source-link-unusable") == (code, log[-1]["code"])
    pattern = log[-1]["hint"].partition("add ")[2].removesuffix(" to IGNORE_PATTERNS")
    code, _, _ = run("dataset", *place, "--ignore-patterns", pattern, env={})

    assert (0, {"deep/f": b"f"}) == (code, tree(to))


def model_in_the_dataset(directory):
    """Make sources of one file each; return the variables by which the model goes into that of the dataset."""
    for name in ("data", "model"):
        (directory / name).mkdir()
        (directory / name / "a").write_bytes(b"a")
    return {
        "TRAINER_AGENT_INIT_DATASET_STORAGE_URI": f"file://{directory}/data",
        "TRAINER_AGENT_INIT_DATASET_OUTPUT_PATH": str(directory / "to"),
        "TRAINER_AGENT_INIT_MODEL_STORAGE_URI": f"file://{directory}/model",
        "TRAINER_AGENT_INIT_MODEL_OUTPUT_PATH": str(directory / "data/model"),
    }


def test_a_model_may_go_into_a_part_of_the_dataset_s_source_that_is_ignored(tree, tmp_path):
    env = model_in_the_dataset(tmp_path) | {"TRAINER_AGENT_INIT_DATASET_IGNORE_PATTERNS": "model/*"}

    assert [0, 0] == [run("all", env=env)[0] for _ in range(2)]
    assert {"data/a": b"a", "data/model/a": b"a", "model/a": b"a", "to/a": b"a"} == tree(tmp_path)


def test_a_model_does_not_go_into_the_dataset_s_source(tree, tmp_path):
    """It would be fetched as data, half of it perhaps."""
    code, log, _ = run("all", env=model_in_the_dataset(tmp_path))

    assert (code, log[-1]["code"]) == (30, "output-path-in-source")
    assert tree(tmp_path) == {"data/a": b"a", "model/a": b"a"}


@pytest.mark.parametrize(
    "option,value,why",
    [
        ("--stall-timeout", "1e20", "1e+20 is not in the range 0.1<=x<=86400"),
        ("--stall-timeout", "1e-9", "1e-09 is not in the range 0.1<=x<=86400"),
        ("--stall-timeout", "nan", "nan is not a number of seconds"),
        ("--timeout", "1e20", "1e+20 is not in the range 1<=x<=31536000"),
        ("--timeout", "inf", "inf is not in the range 1<=x<=31536000"),
    ],
)
def test_seconds_that_no_clock_counts_are_refused(tmp_path, option, value, why):
    """The message has the option, what it was given, and what is wanted."""
    done = started("dataset", "--storage-uri", f"file://{tmp_path}", option, value, env={})

    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"Error: Invalid value for '{option}': {why}.")


@pytest.mark.parametrize("value", ["0.1", "86400"])
def test_the_longest_and_the_shortest_stall(s3, tree, tmp_path, value):
    """A server's answer is waited for."""
    to = ("--storage-uri", "s3://bucket/single.bin", "--output-path", str(tmp_path))

    assert run("dataset", *to, "--stall-timeout", value, env=s3)[0] == 0
    assert tree(tmp_path) == {"single.bin": b"one object"}


@pytest.mark.parametrize(
    "args,event",
    [
        (["dataset"], "STORAGE_URI is not set"),
        (["all"], "neither TRAINER_AGENT_INIT_DATASET_STORAGE_URI nor TRAINER_AGENT_INIT_MODEL_STORAGE_URI is set"),
    ],
)
def test_nothing_to_fetch_is_an_error(args, event):
    """An empty success would start the trainer without data."""
    code, log, _ = run(*args, env={})

    assert (code, log[-1]["event"]) == (30, event)


@pytest.mark.parametrize("secret", ["wJalrXUtnFEMIK7MDENG", "wJalrXUtnFEMI/K7MDENG"])
def test_keys_in_a_uri_are_refused_and_never_shown(tmp_path, secret):
    uri = f"s3://AKIAIOSFODNN7:{secret}@bucket/prefix"

    done = started("dataset", "--storage-uri", uri, "--output-path", str(tmp_path), env={})

    assert 30 == done.returncode
    assert "STORAGE_URI='s3://***@bucket/prefix' holds a user or a password" in done.stderr
    assert not any(part in done.stdout + done.stderr for part in secret.split("/"))
