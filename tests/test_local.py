"""`local`: several nodes on this machine, one exit code, nothing left behind."""

import json
import os
import select
import signal
import subprocess
import sys

import psutil
import pytest
from nvml_machines import h100_sxm

from trainer_agent.accelerators import Accelerators
from trainer_agent.commands.local import Rehearsal, gpu_shares, node_environment

SCRIPT = r"""
import os, signal, sys
rank = int(os.environ["RANK"])
os.write(1, f"rank {{rank}} of {{os.environ['WORLD_SIZE']}}\n".encode())  # whole, though ranks share the pipe
os.write(2, b"no end of line")
{body}
"""


@pytest.fixture
def rehearse(tmp_path):
    """Return a function that starts `local` with a script's body and returns the process."""
    running = []

    def start(body, *options, env=None):
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.format(body=body))
        command = [sys.executable, "-m", "trainer_agent", "local", "--workdir", str(tmp_path / "nodes")]
        process = subprocess.Popen(
            [*command, "--steps", "launch", *options, "--", str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


def left_behind(script):
    """Return the processes whose command line names `script`."""
    lines = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(script) in line]


def test_the_environment_is_the_controllers(tmp_path):
    """Every node gets what Trainer injects, and nothing of another job from the user's shell."""
    rehearsal = Rehearsal(3, "auto", "launch", ("train.py",), tmp_path)
    shell = {"PATH": "/bin", "PET_NNODES": "64", "MASTER_ADDR": "elsewhere", "RANK": "7", "MY": "own"}

    env = node_environment(rehearsal, 2, 29501, shell)

    assert {k: v for k, v in env.items() if not k.startswith("TRAINER_AGENT_")} == {
        "PATH": "/bin",
        "MY": "own",
        "NCCL_HOSTID": "local-node-0-2",
        "HOSTNAME": "local-node-0-2",
        "JOB_COMPLETION_INDEX": "2",
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "29501",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.parametrize(
    "kind, count, listed, expected",
    [
        ("nvidia", 8, None, ["0,1,2,3", "4,5,6,7"]),
        ("nvidia", 5, None, ["0,1", "2,3"]),
        ("nvidia", 3, "GPU-a,GPU-b,6,99", ["GPU-a", "GPU-b"]),
        ("mig", 2, "MIG-a,MIG-b", ["MIG-a", "MIG-b"]),
        ("mig", 4, None, None),
        ("nvidia", 1, None, None),
        ("amd", 8, None, None),
        ("none", 0, "", None),
    ],
)
def test_gpus_are_shared_out(kind, count, listed, expected):
    """A GPU that two nodes use at once is half as fast; CUDA stops at an entry that it does not know."""
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}

    found = gpu_shares(Accelerators(kind, count, ""), environ, 2)

    assert ([{}, {}] if expected is None else [{"CUDA_VISIBLE_DEVICES": share} for share in expected]) == found


@pytest.mark.lab
def test_each_node_has_gpus_of_its_own(rehearse, nvml_standin):
    body = "os.write(1, f\"{os.environ['HOSTNAME']} sees {os.environ['CUDA_VISIBLE_DEVICES']}\\n\".encode())"
    process = rehearse(body, "--nproc-per-node", "gpu", env=nvml_standin.environ(h100_sxm(4)))
    out, err = process.communicate(timeout=90)

    assert process.returncode == 0, err
    assert out.count("local-node-0-0 sees 0,1\n") == out.count("local-node-0-1 sees 2,3\n") == 2


@pytest.mark.lab
def test_two_nodes_meet(rehearse, tmp_path):
    """Four ranks on two nodes; each line says which node wrote it, and a log file keeps it."""
    process = rehearse("", "--nnodes", "2", "--nproc-per-node", "2")
    out, err = process.communicate(timeout=90)

    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == [f"[node {r // 2}] rank {r} of 4" for r in range(4)]
    assert f"exit code 0; reports and logs are in {tmp_path}/nodes/node-*" in err
    assert "rank 0 of 4\n" in (tmp_path / "nodes" / "node-0" / "log.txt").read_text()
    steps = [json.loads(line) for line in (tmp_path / "nodes" / "node-1" / "timeline.jsonl").read_text().splitlines()]
    assert [(s["step"], s["exit_code"]) for s in steps] == [("launch", 0)]


TALKER = """
import os
os.write(1, "".join(f"line {i:06}\\n" for i in range(6_000)).encode())  # more than a pipe holds, whose reader is slow
"""


@pytest.mark.lab
@pytest.mark.parametrize("code", [0, 42])
def test_the_last_words_are_not_lost(tmp_path, code):
    """What is still in the pipes when the last node has ended is shown, and stands in the log."""
    (tmp_path / "train.py").write_text(f"{TALKER}\nraise SystemExit({code})")
    command = [sys.executable, "-m", "trainer_agent", "local", "--workdir", str(tmp_path / "nodes"), "--nnodes", "1"]
    environ = {**os.environ, "TRAINER_AGENT_LAUNCH_LAUNCHER": "python"}
    script = ["--steps", "launch", "--", str(tmp_path / "train.py")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([*command, *script], env=environ, **pipes) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if len(lines) % 20 == 0:
                select.select([], [], [], 0.005)

    expected = [f"line {i:06}" for i in range(6_000)]
    assert (code, [f"[node 0] {line}\n" for line in expected]) == (process.returncode, lines)
    log = (tmp_path / "nodes" / "node-0" / "log.txt").read_text().splitlines()
    assert expected == [line for line in log if line.startswith("line ")]


@pytest.mark.lab
def test_what_lies_where_it_is_started(tmp_path):
    """A click.py of the user's does not come before ours, and the nodes do not read what the user types."""
    (tmp_path / "click.py").write_text("raise SystemExit('wrong click')")
    command = ["local", "--workdir", str(tmp_path / "nodes"), "--nnodes", "1", "--steps", "launch", "--", "cat"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "trainer_agent", *command],
        cwd=tmp_path,
        env={**os.environ, "TRAINER_AGENT_LAUNCH_LAUNCHER": "python"},
        input="typed\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stdout), done.stderr


@pytest.mark.lab
@pytest.mark.parametrize("code", [42, 10])
def test_the_first_failure_decides(rehearse, tmp_path, code):
    """One rank fails, if with the preflight's code for warnings: the other node is stopped, and told is who it was."""
    process = rehearse(f"sys.exit({code}) if rank == 1 else signal.pause()", "--nnodes", "2")
    _, err = process.communicate(timeout=90)

    assert process.returncode == code, err
    message = json.loads((tmp_path / "nodes" / "node-1" / "termination-log").read_text())
    assert (message["exit_code"], message["rank"], message["host"]) == (code, 1, "local-node-0-1")
    assert left_behind(tmp_path / "train.py") == []


@pytest.mark.lab
@pytest.mark.parametrize("signum,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_everything(rehearse, tmp_path, signum, code):
    """Ctrl-C reaches the ranks as a pod's deletion would, and nothing of them stays."""
    process = rehearse("signal.pause()", "--nnodes", "2")
    while "rank 1 of 2" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signum)
    process.communicate(timeout=60)

    assert process.returncode == code
    assert left_behind(tmp_path / "train.py") == []


@pytest.mark.lab
def test_nothing_survives_the_death_of_local(rehearse, tmp_path):
    """Even when it is killed: its nodes are told by the kernel."""
    process = rehearse("signal.pause()", "--nnodes", "2")
    while "rank 1 of 2" not in process.stdout.readline():
        assert process.poll() is None
    agents = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=60)

    _, alive = psutil.wait_procs(agents, timeout=40)
    assert [p.cmdline() for p in alive] == []


def test_a_work_directory_that_cannot_be_written():
    """The message names it."""
    done = subprocess.run(
        [sys.executable, "-m", "trainer_agent", "local", "--workdir", "/proc/none", "--", "x.py"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == 30
    assert json.loads(done.stderr.splitlines()[-1])["code"] == "not-writable"
