"""`trainer-agent preflight` of a job with several nodes: when they meet, what each says, and how it ends."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from marked import marked, until

from trainer_agent.commands.launch_options import RENDEZVOUS_TIMEOUT_S

pytestmark = pytest.mark.lab

# A node that fails a check of its own, with exit code 30.
BROKEN = ("--checks", "storage,roll-call,consistency,collective", "--storage", "/nowhere")
GANG = ("--checks", "roll-call,consistency,collective", "--profile", "quick", "--output", "json")


@pytest.fixture
def port():
    """A master port with two free ones after it: that of the meeting place, and that of the doors."""
    for _ in range(100):
        with ExitStack() as held:
            first = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for number in (first + 1, first + 2):
                    held.enter_context(socket.create_server(("127.0.0.1", number)))
            except OSError:
                continue
            return first
    raise AssertionError("there are no three free ports in a row")


@pytest.fixture
def mark():
    """A variable that everything which the agents start inherits."""
    return {"GANG_TEST_MARK": secrets.token_hex(8)}


@pytest.fixture
def start(port, mark, tmp_path):
    """Return a function that starts the agent of one node of two."""
    started = []

    def node(rank, *args, command=("preflight", *GANG), **environ):
        argv = [sys.executable, "-m", "trainer_agent", *command, *args]
        job = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "localhost"}
        own = {"PET_NODE_RANK": str(rank), "PET_MASTER_PORT": str(port), "HOSTNAME": f"job-node-0-{rank}"}
        log = {"TRAINER_AGENT_PREFLIGHT_TERMINATION_LOG": str(tmp_path / f"termination-log-{rank}")}
        process = subprocess.Popen(
            argv,
            env={**os.environ, **job, **own, **log, **mark, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield node
    for process in started:
        process.kill()
        process.communicate()


def ended(process):
    """Return exit code and report of an agent."""
    out, err = process.communicate(timeout=90)
    assert out, err
    return process.returncode, json.loads(out)


def rows(report):
    return {c["name"]: c for c in report["checks"]}


def said(report):
    return {name: (row["status"], row["message"]) for name, row in rows(report).items()}


@pytest.fixture
def no_torch(tmp_path):
    """The Python that runs this, without what is installed."""
    file = tmp_path / "python"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -ES "$@"\n')
    file.chmod(0o755)
    return str(file)


def test_two_nodes_meet_without_being_told_to(start):
    """All of the gang is the same in both reports, and nobody is to blame."""
    (code, first), (other_code, second) = (ended(process) for process in [start(0), start(1)])

    assert (0, 0) == (code, other_code)
    assert first["gang"] == second["gang"]
    assert ("pass", "none", "continue") == tuple(first["gang"][name] for name in ("verdict", "blame", "action"))
    assert [("job-node-0-0", "ready"), ("job-node-0-1", "ready")] == [
        (node["hostname"], node["state"]) for node in first["gang"]["nodes"]
    ]
    assert ("gloo", 2, True) == tuple(first["gang"]["collective"][name] for name in ("backend", "ranks", "passed"))
    assert {"pass"} == {row["status"] for row in rows(first).values()}


def test_nothing_is_left_of_nodes_that_have_met(start, mark):
    for process in [start(0), start(1)]:
        ended(process)

    assert [] == marked(**mark)


def test_one_alone_says_who_never_came(start, mark):
    code, report = ended(start(0, "--gang-timeout", "2", PET_MASTER_ADDR="job-node-0-0", PET_NNODES="3"))

    assert 20 == code
    assert ["peer", [1, 2]] == [report["gang"]["blame"], [s["node_rank"] for s in report["suspects"]]]
    assert "node 1 (job-node-0-1) never arrived within 2 s" in report["gang"]["summary"]
    assert ["node-missing", "node-missing"] == [f["code"] for f in rows(report)["roll-call"]["findings"]]
    assert ("skip", "the nodes did not come so far") == said(report)["collective"]
    assert [] == marked(**mark)


def test_the_one_that_waits_says_who_never_opened_the_meeting_place(start):
    code, report = ended(start(1, "--gang-timeout", "2"))

    assert 20 == code
    assert ("peer", [0]) == (report["gang"]["blame"], [s["node_rank"] for s in report["suspects"]])
    assert "never opened the meeting place within 2 s" in report["gang"]["summary"]


def test_the_one_to_which_its_name_does_not_lead_says_so_itself(start):
    """As where ranks are swapped; the nodes that look for it elsewhere are well."""
    code, report = ended(start(0, "--gang-timeout", "2", PET_MASTER_ADDR="192.0.2.1"))

    told = "this node has rank 0, but PET_MASTER_ADDR=192.0.2.1 is 192.0.2.1, no address of this node"
    assert (20, told) == (code, report["gang"]["summary"])
    assert (["master-elsewhere"], "none") == (
        [f["code"] for f in rows(report)["roll-call"]["findings"]],
        report["gang"]["blame"],
    )


# Of a job with two nodes, the pod whose rank is 2.
MORE = ("--checks", "environment,roll-call,consistency,collective", "--gang-timeout", "5")


def test_a_pod_more_than_the_job_has_nodes_is_named_by_all(start):
    ends = [ended(process) for process in [start(0, *MORE), start(2, *MORE)]]

    assert [20, 30] == [code for code, _ in ends]
    for _, report in ends:
        assert (
            "node 2 (job-node-0-2) failed its own checks: PET_NODE_RANK=2 is outside 0..1" in report["gang"]["summary"]
        )
        assert [2] == [suspect["node_rank"] for suspect in report["suspects"]]
    assert ["peer", "self"] == [report["gang"]["blame"] for _, report in ends]


@pytest.mark.parametrize("left_out", [["--skip", "consistency"], ["--checks", "roll-call"], []], ids=" ".join)
def test_nodes_that_do_not_fit_together_stop_whatever_is_left_out(start, left_out):
    """7 and 8 processes wait for each other for ever."""
    ends = [ended(process) for process in [start(0, *left_out), start(1, *left_out, PET_NPROC_PER_NODE="2")]]

    row = "roll-call" if left_out else "consistency"
    assert [30, 30] == [code for code, _ in ends]
    assert ["shape-differs"] * 2 == [rows(report)[row]["findings"][0]["code"] for _, report in ends]
    assert ["stop", "stop"] == [report["action"] for _, report in ends]


def test_nodes_meet_at_rank_zero_though_their_rendezvous_is_elsewhere(start):
    """An etcd is no node of the job, and its name not that of rank 0."""
    etcd = {"PET_RDZV_BACKEND": "etcd-v2", "PET_RDZV_ENDPOINT": "etcd.invalid:2379"}
    ends = [ended(process) for process in [start(0, **etcd), start(1, **etcd)]]
    code, alone = ended(start(1, **etcd, PET_MASTER_ADDR=""))

    assert [(0, "pass"), (0, "pass")] == [(code, report["gang"]["verdict"]) for code, report in ends]
    assert (0, False, "skip") == (code, "gang" in alone, rows(alone)["roll-call"]["status"])
    assert "set PET_MASTER_ADDR to rank 0's pod" in said(alone)["roll-call"][1]


def test_a_node_that_fails_its_own_checks_keeps_its_verdict_and_frees_the_other(start):
    """It stops with its own exit code and blame, the other with one that lets it try again."""
    broken = start(1, *BROKEN)
    (code, healthy), (other_code, failed) = ended(start(0)), ended(broken)

    assert (20, 30) == (code, other_code)
    assert ("peer", "self") == (healthy["gang"]["blame"], failed["gang"]["blame"])
    assert {"node-failed"} == {f["code"] for f in rows(healthy)["roll-call"]["findings"]}
    assert "node 1 (job-node-0-1) failed its own checks" in healthy["gang"]["summary"]


def test_ignoring_the_roll_call_makes_a_warning_of_it(start):
    code, report = ended(start(0, "--gang-timeout", "1", "--ignore", "roll-call"))

    assert (10, "warn", "warn") == (code, report["verdict"], rows(report)["roll-call"]["status"])
    assert said(report)["roll-call"][1].endswith("(failure ignored by --ignore roll-call)")


@pytest.mark.parametrize(
    "args, environ, reason",
    [
        (["--scope", "node"], {}, "the nodes meet with --scope gang"),
        ([], {"TRAINER_AGENT_PREFLIGHT_SCOPE": "node"}, "the nodes meet with --scope gang"),
        (["--skip", "roll-call"], {}, "left out by --skip"),
        ([], {"PET_NNODES": "1"}, "the job has one node"),
        (["--scope", "gang"], {"PET_NNODES": "1"}, "the job has one node"),
        ([], {"PET_NNODES": "1:2"}, "the job is elastic: nobody knows how many nodes will come"),
    ],
    ids=["scope", "variable", "skipped", "one node", "scope gang and one node", "elastic"],
)
def test_nobody_is_waited_for(start, args, environ, reason):
    """Where the default of --gang-timeout would hold it up for ten minutes, it ends, and says why."""
    code, report = ended(start(0, *args, **environ))

    assert (0, False) == (code, "gang" in report)
    assert ("skip", reason) == said(report)["roll-call"]
    assert "skip" == rows(report)["collective"]["status"]


def test_without_torch_the_rest_decides(start, no_torch):
    """The roll-call is skipped with the reason, and a failure of a node's own checks stays one."""
    code, report = ended(start(0, "--python", no_torch))
    failed_code, failed = ended(start(0, "--python", no_torch, *BROKEN))

    assert (0, 30) == (code, failed_code)
    assert ["skip", "skip"] == [rows(r)["roll-call"]["status"] for r in (report, failed)]
    assert "has no torch: No module named 'torch'" in said(report)["roll-call"][1]


@pytest.mark.parametrize("rank", [0, 1])
def test_with_a_torch_that_cannot_do_it_the_rest_decides(start, tmp_path, rank):
    """As without any: no node is accused."""
    (tmp_path / "torch.py").write_text('__version__ = "2.0.1"\nclass distributed: is_available = lambda: False\n')
    code, report = ended(start(rank, PYTHONPATH=str(tmp_path)))

    assert (0, []) == (code, report["suspects"])
    assert "skip" == rows(report)["roll-call"]["status"]
    assert "cannot do it with its torch: torch 2.0.1 has no torch.distributed" in said(report)["roll-call"][1]


def test_without_a_python_the_rest_decides(start):
    """As in an image of a program that needs none."""
    code, report = ended(start(0, "--python", "/nowhere/python"))

    assert (0, "skip", []) == (code, rows(report)["roll-call"]["status"], report["suspects"])
    assert "cannot be started: No such file or directory" in said(report)["roll-call"][1]


def test_a_node_whose_torch_is_killed_does_not_go_on_alone(start, mark):
    """As by the kernel that runs out of memory, in the middle of the import or of the meeting."""
    process = start(1)
    [pid] = until(lambda: [pid for pid in marked(**mark) if "probes/gang_probe" in command_line(pid)][:1])
    os.kill(pid, signal.SIGKILL)
    code, report = ended(process)

    assert (20, ["torch-side-ended"]) == (code, [f["code"] for f in rows(report)["roll-call"]["findings"]])
    assert "was killed by signal 9" in said(report)["roll-call"][1]
    assert [] == marked(**mark)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_pod_that_is_deleted_while_it_imports_torch_ends_and_leaves_nothing(start, mark, rank):
    process = start(rank)
    until(lambda: any("gang_probe" in words for words in command_lines(mark)))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert 143 == process.returncode
    assert [] == marked(**mark)


def test_rank_0_is_deleted_while_it_waits_and_closes_the_meeting_place(start, mark, port):
    process = start(0)
    until(lambda: reachable(port + 1))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert (143, False, False) == (process.returncode, reachable(port + 1), reachable(port + 2))
    assert [] == marked(**mark)


@pytest.mark.parametrize("options, seconds", [((), "120"), (("--rendezvous-timeout", "300"), "300")])
def test_nodes_that_have_met_are_not_waited_for_long(start, tmp_path, options, seconds):
    """In `run` the launch follows at once, unless the user wants it otherwise."""
    quick = {"TRAINER_AGENT_PREFLIGHT_CHECKS": "roll-call", "TRAINER_AGENT_PREFLIGHT_GANG_TIMEOUT": "30"}
    (tmp_path / "torchrun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    python = {"TRAINER_AGENT_PREFLIGHT_PYTHON": sys.executable, "TRAINER_AGENT_LAUNCH_PYTHON": f"{tmp_path}/python"}
    command = ("run", "--steps", "preflight,launch", *options, "--", "train.py")
    nodes = [start(rank, command=command, **quick, **python) for rank in range(2)]
    outs = [process.communicate(timeout=60)[0] for process in nodes]

    assert [0, 0] == [process.returncode for process in nodes]
    assert [True, True] == [f"--rdzv-conf timeout={seconds} " in out for out in outs]


def test_a_node_that_met_nobody_waits_for_them_as_long_as_usual(start, tmp_path):
    """Where that they did not meet is ignored, nobody knows when the others come."""
    quick = {"TRAINER_AGENT_PREFLIGHT_CHECKS": "roll-call", "TRAINER_AGENT_PREFLIGHT_GANG_TIMEOUT": "1"}
    (tmp_path / "torchrun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    python = {"TRAINER_AGENT_PREFLIGHT_PYTHON": sys.executable, "TRAINER_AGENT_LAUNCH_PYTHON": f"{tmp_path}/python"}
    command = ("run", "--steps", "preflight,launch", "--", "train.py")
    node = start(1, command=command, **quick, **python, TRAINER_AGENT_PREFLIGHT_IGNORE="roll-call")
    out = node.communicate(timeout=60)[0]

    assert (0, True) == (node.returncode, f"--rdzv-conf timeout={RENDEZVOUS_TIMEOUT_S:g} " in out)


def reachable(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def command_lines(mark):
    """Return the command lines of everything that the agents have started."""
    return [command_line(pid) for pid in marked(**mark)]


def command_line(pid):
    """Return the words of a process, nothing where it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def test_nodes_of_two_attempts_do_not_meet(start, port):
    """Rank 0 of the new attempt waits for its own nodes; the pod of the old one is told why."""
    first = start(0, "--attempt", "1", "--gang-timeout", "30")
    until(lambda: reachable(port + 1))
    code, old = ended(start(1, "--attempt", "0", "--gang-timeout", "12"))
    first_code, new = ended(first)

    assert (20, 20) == (code, first_code)
    assert "rank 0 is of attempt '1' of the job, and this node of '0'" in old["gang"]["summary"]
    assert [1] == [s["node_rank"] for s in new["suspects"]]


def test_the_name_of_the_machine_is_what_to_avoid(start):
    """As Kubernetes has it, from NODE_NAME."""
    processes = [start(0), start(1, *BROKEN, NODE_NAME="gpu-17")]
    (_, report), _ = [ended(process) for process in processes]

    assert {"hostnames": ["gpu-17"], "gpus": []} == report["gang"]["avoid"]


def test_the_history_grows_by_what_was_measured(start, tmp_path):
    """Only rank 0 writes, and only what a profile with timings measured."""
    history = tmp_path / "history.jsonl"
    options = ("--profile", "standard", "--gang-history", str(history))
    codes = [ended(process)[0] for process in [start(0, *options), start(1, *options)]]

    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert [0, 0] == codes
    assert {("gloo", 2, 2)} == {(line["backend"], line["nodes"], line["ranks"]) for line in lines}
    assert all(line["busbw_gbps"] > 0 for line in lines)
