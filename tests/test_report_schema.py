"""docs/report.schema.json: what the program writes is valid, and nothing else is."""

import copy
import json
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "report.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
GOOD = {
    "schema": "trainer-agent.preflight/v1",
    "verdict": "retry",
    "exit_code": 20,
    "action": "reschedule",
    "node": {"hostname": "node-a", "rank": 1, "nnodes": 2},
    "suspects": [{"kind": "node", "id": "node-a", "node_rank": 1, "reason": "it is slow"}],
    "checks": [
        {
            "name": "shm",
            "status": "fail",
            "action": "reschedule",
            "duration_s": 0.5,
            "message": "64 MiB",
            "findings": [{"code": "a-b", "severity": "error", "message": "m", "hint": "", "evidence": {"bytes": 1}}],
            "measurements": {"bytes": 67108864},
        },
        {
            "name": "rdma",
            "status": "skip",
            "action": "continue",
            "duration_s": 0,
            "message": "no device",
            "findings": [],
            "measurements": {},
        },
    ],
    "gang": {
        "attempt": "a1",
        "epoch": 1,
        "written_by": 0,
        "nnodes": 2,
        "verdict": "retry",
        "action": "reschedule",
        "blame": "self",
        "summary": "node 1 (node-a) is slow",
        "nodes": [
            {
                "rank": 1,
                "hostname": "node-a",
                "node": "gpu-17",
                "address": "10.77.0.10",
                "arrived_s": 0.5,
                "state": "ready",
                "note": "",
                "clock_offset_s": -0.01,
            }
        ],
        "differences": [
            {"key": "driver", "severity": "info", "values": [{"value": "550", "ranks": [0]}], "minority": [1]}
        ],
        "collective": {
            "backend": "gloo",
            "ranks": 2,
            "transport": "tcp",
            "passed": True,
            "rows": [{"of": "all-reduce", "bytes": 8, "seconds": 0.1, "busbw_gbps": 0.5, "expected_busbw_gbps": 1.0}],
            "message": "exact",
        },
        "pairs": [{"a": 0, "b": 1, "round": 0, "passed": False, "gbps": 0.1, "why": "slow"}],
        "suspects": [{"kind": "node", "id": "node-a", "node_rank": 1, "reason": "it is slow"}],
        "undetermined": [{"ranks": [0, 1], "reason": "they met nobody else"}],
        "avoid": {"hostnames": ["gpu-17"], "gpus": ["GPU-uuid"]},
        "phases": [{"name": "roll-call", "seconds": 0.31}],
    },
    "started_at": "2026-01-01T00:00:00.000+00:00",
    "duration_s": 1.235,
    "versions": {"trainer-agent": "1", "python": "3", "kernel": "6"},
}


def places(value, path=()):
    """Yield the path of every object and of every field below."""
    if isinstance(value, dict):
        yield path
        for name in value:
            yield from places(value[name], (*path, name))
    elif isinstance(value, list):
        for number in range(len(value)):
            yield from places(value[number], (*path, number))
    else:
        yield path


def changed(path, value):
    data = copy.deepcopy(GOOD)
    *above, last = path
    target = data
    for step in above:
        target = target[step]
    target[last] = value
    return data


def without(path):
    data = copy.deepcopy(GOOD)
    *above, last = path
    target = data
    for step in above:
        target = target[step]
    del target[last]
    return data


def at(path):
    value = GOOD
    for step in path:
        value = value[step]
    return value


def shapes_in(schema):
    """Yield all objects that the schema describes."""
    if isinstance(schema, dict) and schema.get("type") == "object" and "properties" in schema:
        yield schema
    below = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for one in below:
        yield from shapes_in(one)


def dotted(path):
    return ".".join(map(str, path))


FREE = ("evidence", "measurements", "versions")
FIELDS = [p for p in places(GOOD) if p and isinstance(p[-1], str) and not set(p[:-1]) & {"evidence", "measurements"}]
CLOSED = [p for p in places(GOOD) if (not p or p[-1] not in FREE) and not set(p) & set(FREE)]
OBJECTS = [p for p in CLOSED if isinstance(at(p), dict)]
MAY_BE_ABSENT = [("gang",), ("gang", "collective", "rows", 0, "expected_busbw_gbps")]


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert [] == list(VALIDATOR.iter_errors(GOOD))


def test_every_object_says_what_it_is():
    """A closed object lists all its fields as required, so that a reader may rely on each; two may be absent."""
    shapes = list(shapes_in(SCHEMA))
    absent = {name for shape in shapes for name in shape["properties"] if name not in shape["required"]}

    assert [False] * 15 == [s["additionalProperties"] for s in shapes]
    assert {path[-1] for path in MAY_BE_ABSENT} == absent


@pytest.mark.parametrize("path", FIELDS, ids=dotted)
def test_no_field_may_be_missing(path):
    """A report about one node has no gang, and not every rate has one to be compared with."""
    assert (path in MAY_BE_ABSENT) is VALIDATOR.is_valid(without(path))


@pytest.mark.parametrize("path", FIELDS, ids=dotted)
def test_no_field_may_be_of_another_kind(path):
    assert not VALIDATOR.is_valid(changed(path, [None]))


@pytest.mark.parametrize("path", OBJECTS, ids=dotted)
def test_no_field_may_be_added(path):
    assert not VALIDATOR.is_valid(changed((*path, "more"), 1))


@pytest.mark.parametrize(
    "path, value",
    [
        (("verdict",), "maybe"),
        (("exit_code",), 10),
        (("action",), "stop"),
        (("node", "rank"), -1),
        (("node", "nnodes"), 0),
        (("duration_s",), -0.1),
        (("started_at",), "2026-01-01 00:00:00"),
        (("suspects", 0, "kind"), "ghost"),
        (("checks", 0, "status"), "ok"),
        (("checks", 0, "findings"), []),
        (("checks", 0, "findings", 0, "severity"), "warning"),
        (("checks", 0, "findings", 0, "severity"), "bad"),
        (("checks", 1, "action"), "stop"),
        (("checks", 1, "measurements"), {"a": 1}),
        (("gang", "blame"), "me"),
        (("gang", "nnodes"), 0),
        (("gang", "nodes", 0, "state"), "asleep"),
        (("gang", "nodes", 0, "arrived_s"), -1),
        (("gang", "collective", "backend"), "mpi"),
        (("gang", "pairs", 0, "gbps"), "fast"),
        (("gang", "undetermined", 0, "ranks"), [-1]),
    ],
    ids=str,
)
def test_no_value_may_contradict_the_others(path, value):
    """The verdict and its code, a failure without an error, a skipped check that measured."""
    assert not VALIDATOR.is_valid(changed(path, value))


@pytest.mark.parametrize(
    "path", [("gang", "collective"), ("gang", "nodes", 0, "arrived_s"), ("gang", "pairs", 0, "gbps")], ids=dotted
)
def test_what_was_not_measured_is_null(path):
    assert VALIDATOR.is_valid(changed(path, None))


@pytest.fixture
def silent_server():
    """An address that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.getsockname()[1])}


@pytest.mark.lab
@pytest.mark.parametrize(
    "arguments, environ, status",
    [
        (["--checks", "environment"], {}, "pass"),
        (["--checks", "environment"], {"NCCL_P2P_DISABLE": "1"}, "warn"),
        (["--checks", "environment"], {"PET_NNODES": "0"}, "fail"),
        (["--checks", "storage", "--storage", "/nowhere/data"], {}, "fail"),
        (["--checks", "shm", "--skip", "shm"], {}, "skip"),
        (["--checks", "kube-api", "--timeout", "0.1"], "silent", "error"),
    ],
)
def test_what_the_program_writes_is_valid(tmp_path, silent_server, arguments, environ, status):
    """One report of the real program for each status."""
    environ = silent_server if environ == "silent" else environ
    argv = [sys.executable, "-m", "trainer_agent", "preflight", "--report-file", str(tmp_path / "r.json"), *arguments]

    subprocess.run(argv, env=environ, capture_output=True, timeout=30, check=False)

    data = json.loads((tmp_path / "r.json").read_text())
    assert [] == [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(data)]
    assert [status] == [c["status"] for c in data["checks"]]
