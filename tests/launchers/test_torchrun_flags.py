"""torchrun's flags: read as torchrun's own parser reads them, and what they say instead of variables."""

import json
import random
import subprocess
import sys

import pytest

from trainer_agent.errors import Severity
from trainer_agent.launchers.torchrun_flags import Given, findings, origins_of, own_torchrun, read, told
from trainer_agent.topology import read_topology

# Words of all kinds: spellings, beginnings, values that fit and that do not, what ends the flags, and mistakes.
WORDS = (
    *("--nnodes", "--nnodes=2", "--nnode", "--nn=3", "--n", "--nnodes=1:4", "--nnodes=x", "--nproc-per-node=2"),
    *("--nproc_per_node", "--nproc-p=4", "--nproc", "--nproc-per-node=auto", "--node-rank=1", "--node_rank", "--node"),
    *("--master-addr=h", "--master_addr", "--master-port=7", "--master_port", "--master", "--rdzv-backend=c10d"),
    *("--rdzv_backend", "--rdzv-endpoint=h:1", "--rdzv_e", "--rdzv-id=7", "--rdzv-conf=a=1", "--rdzv_c", "--rdzv"),
    *("--standalone", "--stand", "--standalone=1", "-m", "--module", "--no-python", "--no_python", "--no", "-mfoo"),
    *("--run-path", "--max-restarts=1", "--max_restarts", "--tee=3", "-t3", "-t", "-r", "-r=1", "--redirects", "-x"),
    *("--local-addr=h", "--log-dir", "--log", "--role", "--virtual-local-rank", "--virtual_l", "--what", "--what=1"),
    *("1", "2", "0", "3", "t.py", "h", "a=1", "static", "c10d", "--", "-", "", "x y", "-1", "--start-method=fork"),
    *("--start-method=thread", "--max-restarts=x", "--monitor-interval=0.5", "--monitor-interval=.5"),
)
AMBIGUOUS = {"--n", "--nproc", "--node", "--no", "--master", "--rdzv", "--log"}
ORACLE = """
import contextlib, io, json, sys
from torch.distributed.run import get_args_parser
def parse(words):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return vars(get_args_parser().parse_args(words))
    except (SystemExit, ValueError):
        return None
print(json.dumps([parse(words) for words in json.load(sys.stdin)]))
"""


def of_torch(lines):
    """Return what torchrun's own parser makes of these command lines, None for those that it refuses."""
    words = [sys.executable, "-c", ORACLE]
    done = subprocess.run(words, input=json.dumps(lines), text=True, capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


def shape(*words, **environ):
    """Return the topology of `torchrun WORDS`."""
    return read_topology(told(("torchrun", *words), environ), hostname="box")


@pytest.mark.lab
def test_flags_are_read_as_torchrun_reads_them():
    """Of 3,000 random command lines: what we take for a start of training says the same to torchrun's parser."""
    chance = random.Random(7)
    lines = [[*chance.choices(WORDS, k=chance.randint(0, 5)), "t.py", "--nnodes", "9"] for _ in range(3000)]
    understood = 0
    for words, wanted in zip(lines, of_torch(lines), strict=True):
        given = read(words)
        if not given.trains:
            continue
        if wanted is None:  # its parser looks for beginnings of flags behind the script, too
            assert AMBIGUOUS.intersection(given.rest), words
            continue
        understood += 1
        flags = {name: str(wanted[name[2:].replace("-", "_")]) for name in given.flags}
        assert dict(given.flags) == flags, words
        assert ("--standalone" in given.bare) == wanted["standalone"], words
        script = [w for w in (wanted["training_script"], *wanted["training_script_args"]) if w != "--"]
        assert [w for w in given.rest if w != "--"][-len(script) :] == script, words
    assert understood > 300


@pytest.mark.lab
def test_every_flag_of_this_torchrun_is_known():
    """Each of its options is one of ours, with as many values, in each spelling."""
    code = """
import json
from torch.distributed.run import get_args_parser
print(json.dumps([[s, a.nargs] for a in get_args_parser()._actions for s in a.option_strings]))
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, text=True, capture_output=True, check=True, timeout=60)
    options = json.loads(done.stdout)
    assert len(options) > 50
    for spelling, nargs in options:
        value = {"--start-method": "fork"}.get(spelling.replace("_", "-"), "1")
        given = read([spelling, *((value,) if nargs is None else ()), "t.py"])
        assert ("", True) == (given.unknown, given.script), spelling


@pytest.mark.parametrize(
    "words, wanted",
    [
        ((), Given()),
        (("t.py", "--nnodes", "2"), Given(rest=("t.py", "--nnodes", "2"), script=True)),
        (
            ("--nnodes=2", "--nproc_per_node", "4", "--tee", "3", "-m", "pkg"),
            Given(
                {"--nnodes": "2", "--nproc-per-node": "4"},
                ("--nnodes=2",),
                ("--tee", "3", "-m", "pkg"),
                frozenset({"--module"}),
                script=True,
            ),
        ),
        (
            ("--nnodes=2", "--nnodes=3", "t"),
            Given({"--nnodes": "3"}, ("--nnodes=2", "--nnodes=3"), ("t",), script=True),
        ),
        (
            ("--nnodes", "2", "--foo", "t.py"),
            Given({"--nnodes": "2"}, ("--nnodes", "2"), ("--foo", "t.py"), unknown="--foo"),
        ),
        (("--nnodes", "two", "t.py"), Given(rest=("--nnodes", "two", "t.py"), unknown="--nnodes")),
        (("--nnodes", "٣", "t.py"), Given(rest=("--nnodes", "٣", "t.py"), unknown="--nnodes")),
        (("--nnodes",), Given(rest=("--nnodes",), unknown="--nnodes")),
        (("--help",), Given(rest=("--help",), bare=frozenset({"--help"}))),
        (("--",), Given(rest=("--",))),
    ],
)
def test_what_is_read(words, wanted):
    """Flags by their first spelling, the words of the meeting, all others, and where our understanding ends."""
    assert wanted == read(words)


@pytest.mark.parametrize(
    "words, trains",
    [
        (("t.py",), True),
        (("-h",), False),
        (("t.py", "-h"), True),
        ((), False),
        (("--nnodes=2",), False),
        (("-x",), False),
    ],
)
def test_what_starts_training(words, trains):
    """A script that torchrun would run, and neither a question nor a mistake."""
    assert trains == read(words).trains


@pytest.mark.parametrize(
    "script, starter",
    [
        (("torchrun", "t.py"), ("torchrun",)),
        (("/opt/bin/torchrun", "t.py"), ("/opt/bin/torchrun",)),
        (("python3", "-m", "torch.distributed.run", "t.py"), ("python3", "-m", "torch.distributed.run")),
        (("python3", "torchrun"), None),
        ((), None),
    ],
)
def test_what_is_torchrun(script, starter):
    """The program and the module."""
    own = own_torchrun(script)
    assert starter == (own and own[0])


SDK = ("--nproc_per_node=2", "--nnodes=3", "--node-rank=1", "--rdzv-backend=static", "--rdzv-endpoint=10.0.0.5:29511")


def test_what_kubeflows_sdk_sends():
    """Nodes, rank, processes and rank 0's place, where no variable says anything."""
    found = shape(*SDK, "/tmp/train.py")
    said = (found.runtime, found.max_nodes, found.node_rank, found.nproc, found.master_addr, found.master_port)
    assert ("torch", 3, 1, 2, "10.0.0.5", 29511) == said
    assert ("static", ()) == (found.rdzv_backend, found.findings)


PET = {
    "PET_NNODES": "4",
    "PET_NODE_RANK": "3",
    "PET_NPROC_PER_NODE": "8",
    "PET_MASTER_ADDR": "j-0.j",
    "PET_MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    "words, environ, wanted",
    [
        (("--nnodes=2", "--node-rank=0"), PET, (2, 0, 8, "j-0.j", 29500, "static")),
        (("--master-addr=h", "--master-port=5"), PET, (4, 3, 8, "h", 5, "static")),
        (("--master-addr=h",), {**PET, "PET_RDZV_ENDPOINT": "e:1"}, (4, 3, 8, "h", 29500, "static")),
        (("--rdzv-endpoint=e:1",), PET, (4, 3, 8, "e", 1, "static")),
        (("--rdzv-endpoint=e:1", "--master-addr=h"), PET, (4, 3, 8, "e", 1, "static")),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=e"), PET, (4, 3, 8, "e", 29400, "c10d")),
        (("--rdzv-endpoint=e",), {**PET, "PET_RDZV_BACKEND": "c10d"}, (4, 3, 8, "e", 29400, "c10d")),
        (("--rdzv-endpoint=e",), PET, (4, 3, 8, "e", 29500, "static")),
        (("--standalone",), {**PET, "PET_RDZV_ENDPOINT": "e:1"}, (1, 0, 8, "j-0.j", 29500, "static")),
        (("--standalone", "--rdzv-backend=c10d", "--nproc-per-node=gpu"), {}, (1, 0, "gpu", "", 29500, "static")),
        (("--nnodes=2",), {}, (2, 0, None, "127.0.0.1", 29500, "static")),
        (("--nnodes=2", "--master-port=5"), {}, (2, 0, None, "127.0.0.1", 5, "static")),
        (("--nnodes=2", "--rdzv-backend=c10d"), {}, (2, 0, None, "127.0.0.1", 29400, "c10d")),
        (("--rdzv-backend=c10d",), PET, (4, 3, 8, "j-0.j", 29500, "c10d")),
        (("--nnodes=1:1",), {}, (1, 0, None, "", 29500, "static")),
    ],
)
def test_flags_win_over_variables(words, environ, wanted):
    """One by one, with torchrun's own defaults for what neither says."""
    found = shape(*words, "t.py", **environ)
    place = (found.master_addr, found.master_port, found.rdzv_backend)
    assert wanted == (found.max_nodes, found.node_rank, found.nproc, *place)
    assert () == found.findings


def test_the_id_of_a_meeting_that_flags_name():
    """It is torchrun's own where nobody gives one, as nodes may write the endpoint differently."""
    words = ("torchrun", "--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.5:29500", "t.py")
    assert "none" == told(words, PET)["PET_RDZV_ID"]
    assert "7" == told(words, {**PET, "PET_RDZV_ID": "7"})["PET_RDZV_ID"]
    assert "8" == told((*words[:1], "--rdzv-id=8", *words[1:]), {**PET, "PET_RDZV_ID": "7"})["PET_RDZV_ID"]


def test_other_commands_are_told_nothing():
    """Flags of a script are its own."""
    assert PET == told(("train.py", "--nnodes", "2"), PET)


def test_a_rank_that_nobody_has_told():
    """c10d gives out ranks itself, so that 0 is a guess there; with static it is torchrun's default."""
    c10d = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1")
    assert not shape(*c10d, "t.py").rank_known
    assert shape(*c10d, "--node-rank=1", "t.py").rank_known
    assert shape(*c10d, "t.py", JOB_COMPLETION_INDEX="1").rank_known
    assert shape("--nnodes=2", "t.py").rank_known


def test_contradictions_name_both():
    """A flag that differs from its variable is said with both values; one that agrees is not."""
    found = findings(("torchrun", "--nnodes=2", "--node_rank", "3", "t.py"), PET)
    message = "the command says --nnodes=2 and the environment PET_NNODES=4: the command counts"
    hint = "remove the flag from the command, or make PET_NNODES say the same"
    said = [(f.code, f.severity, f.message, f.hint) for f in found]
    assert [("torchrun-flag-differs", Severity.WARNING, message, hint)] == said
    alone = findings(("torchrun", "--standalone", "t.py"), {"PET_NNODES": "4"})
    assert ["the command says --standalone and the environment PET_NNODES=4: the command counts"] == [
        f.message for f in alone
    ]
    assert [] == findings(("train.py", "--nnodes=2"), PET)


def test_what_only_torchrun_can_answer():
    """A word that we do not understand is named, as what follows it counts for nothing here."""
    (found,) = findings(("torchrun", "--what", "--nnodes=2", "t.py"), {})
    message = "'--what' among torchrun's own words is nothing that we understand, so torchrun answers it"
    assert ("torchrun-flag-unknown", Severity.WARNING, message) == (found.code, found.severity, found.message)


def test_where_a_setting_comes_from():
    """The variable by the flag that stands for it."""
    script = ("torchrun", "--standalone", "--nproc_per_node=2", "t.py")
    wanted = {"PET_NNODES": "--standalone", "PET_NODE_RANK": "--standalone", "PET_NPROC_PER_NODE": "--nproc-per-node"}
    assert wanted == origins_of(script)
    assert {} == origins_of(("t.py",))
