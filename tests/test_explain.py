"""explain: every setting with its origin, every problem, and the command that would run."""

import json
import subprocess
import sys

import pytest

from trainer_agent.commands.explain import gather, render
from trainer_agent.commands.launch_options import LaunchOptions
from trainer_agent.testing import FakeHost

AGENT = (sys.executable, "-m", "trainer_agent")
OPTIONS = LaunchOptions(
    launcher="auto",
    nproc=None,
    nproc_policy="fix",
    allow_cpu_fallback=False,
    rendezvous_timeout=900.0,
    supervise=None,
    grace=25.0,
    keep_pet_env=False,
    python="/venv/bin/python",
    termination_log=None,
    dry_run=False,
)
TORCH = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "j-0.j",
    "PET_MASTER_PORT": "29500",
    "TRAINER_AGENT_LAUNCH_GRACE": "55",
}


def setting(name, value, origin, effect=""):
    return {"setting": name, "value": value, "origin": origin, "effect": effect}


def explain(*words, **environ):
    environ = {"PATH": "/usr/bin:/bin", **environ}
    return subprocess.run([*AGENT, "explain", *words], env=environ, capture_output=True, text=True, check=False)


def gathered(tmp_path, environ, *, script=("train.py",), options=OPTIONS):
    host = FakeHost(tmp_path, cpus=8)
    host.put("/proc/self/cgroup", "0::/\n")
    host.put("/sys/fs/cgroup/cgroup.controllers")
    host.put("/sys/fs/cgroup/cpu.max", "600000 100000\n")
    host.put("/sys/fs/cgroup/memory.max", str(3 << 29))
    return gather(options, script, environ, host, known=("TRAINER_AGENT_LAUNCH_GRACE",))


def test_all_of_a_job(tmp_path):
    """What was read, what it came from, what was decided and what would run."""
    nproc = "4 processes as PET_NPROC_PER_NODE=4 says, on CPUs: no accelerator is visible"
    flags = "--nnodes 2 --node-rank 0 --master-addr j-0.j --master-port 29500 --rdzv-conf timeout=900"
    expected = {
        "runtime": "torch",
        "settings": [
            setting("PET_NNODES", "2", "environment", "number of nodes (MIN:MAX when elastic)"),
            setting("PET_NPROC_PER_NODE", "4", "environment", "processes asked for on this node"),
            setting("PET_NODE_RANK", "0", "environment", "this node's rank"),
            setting("PET_MASTER_ADDR", "j-0.j", "environment", "where rank 0 listens"),
            setting("PET_MASTER_PORT", "29500", "environment", "port of the rendezvous and of MASTER_PORT"),
            setting("PET_RDZV_ENDPOINT", "", "not set", "overrides address and port of the rendezvous"),
            setting("PET_RDZV_BACKEND", "static", "default", "how the nodes find each other"),
            setting("cpu quota", "6", "cgroup v2", "6 CPUs may be used"),
            setting("cpus allowed", "8", "affinity mask"),
            setting("memory limit", "1.5 GiB", "cgroup v2"),
            setting("TRAINER_AGENT_LAUNCH_GRACE", "55", "environment", "an option of trainer-agent"),
            setting("processes", "4", "decision", nproc),
            setting("OMP_NUM_THREADS", "1", "decision", "CPUs divided by processes"),
        ],
        "problems": [],
        "command": f"/venv/bin/python -m torch.distributed.run {flags} --nproc-per-node 4 train.py",
        "exit_code": 0,
    }
    assert expected == gathered(tmp_path, TORCH | {"PATH": "/no/such"})


def test_what_the_users_own_torchrun_is_told(tmp_path):
    """Flags count, are shown as the origin, and a variable that says something else is a problem."""
    script = ("torchrun", "--nnodes=3", "--nproc_per_node", "1", "--tee", "3", "t.py")
    found = gathered(tmp_path, TORCH | {"PATH": "/no/such"}, script=script)
    origins = [(row["setting"], row["value"], row["origin"]) for row in found["settings"][:3]]
    flags = "--nnodes 3 --node-rank 0 --master-addr j-0.j --master-port 29500 --rdzv-conf timeout=900"
    expected = [
        ("PET_NNODES", "3", "--nnodes"),
        ("PET_NPROC_PER_NODE", "1", "--nproc-per-node"),
        ("PET_NODE_RANK", "0", "environment"),
    ]
    assert expected == origins
    assert f"/venv/bin/python -m torch.distributed.run {flags} --nproc-per-node 1 --tee 3 t.py" == found["command"]
    problems = [(each["severity"], each["message"]) for each in found["problems"]]
    assert [
        ("warning", "the command says --nnodes=3 and the environment PET_NNODES=2: the command counts"),
        ("warning", "the command says --nproc-per-node=1 and the environment PET_NPROC_PER_NODE=4: the command counts"),
    ] == problems


def test_a_job_that_launch_would_refuse(tmp_path):
    """What launch would say is a problem here, with the exit code that it would give up with."""
    found = gathered(tmp_path, {**TORCH, "PET_NPROC_PER_NODE": "auto"})
    problem = {
        "code": "no-accelerator",
        "severity": "error",
        "message": "PET_NPROC_PER_NODE=auto asks for accelerators and none is visible here "
        "(0 device nodes /dev/nvidia<N>; NVML is not here)",
        "hint": "check that the container requests nvidia.com/gpu and that the device plugin runs on this node; "
        "to train on CPUs set TRAINER_AGENT_LAUNCH_NPROC=cpu, in spec.trainer.env of a TrainJob",
    }
    assert ([problem], "", 30) == (found["problems"], found["command"], found["exit_code"])


def test_contradictions(tmp_path):
    """All findings are problems, and no command is guessed."""
    found = gathered(tmp_path, {**TORCH, "PET_NNODES": "x", "PET_NODE_RANK": "-1"})
    codes = [(p["code"], p["severity"]) for p in found["problems"]]
    expected = ([("nnodes-invalid", "error"), ("out-of-range", "error")], "", 30)
    assert expected == (codes, found["command"], found["exit_code"])


@pytest.mark.parametrize("value, origin", [("3", "environment"), (None, "not set")])
def test_omp_threads_that_nobody_decided(tmp_path, value, origin):
    """The user's choice is shown as such."""
    environ = {} if value is None else {"OMP_NUM_THREADS": value}
    found = gathered(tmp_path, environ)
    assert setting("OMP_NUM_THREADS", value or "", origin) == found["settings"][-1]


def test_text():
    """Columns are aligned, an empty value is a dash, and problems stand above the command."""
    rows = [setting("A", "1", "environment", "an effect"), setting("LONGER", "", "not set")]
    problem = {"code": "some-code", "severity": "warning", "message": "it is 1", "hint": "set 2"}
    expected = """\
setting  value  origin       effect
A        1      environment  an effect
LONGER   -      not set      -

warning: it is 1 [some-code]
  -> set 2
runs: python train.py"""
    assert expected == render({"settings": rows, "problems": [problem], "command": "python train.py"})


def test_json_output():
    """--output json prints the whole document and nothing else."""
    done = explain("--output", "json", "--python", "/venv/bin/python", "--", "-c", "x y")
    data = json.loads(done.stdout)
    expected = ("plain", [], "/venv/bin/python -c 'x y'", 0)
    assert expected == (data["runtime"], data["problems"], data["command"], data["exit_code"])
    assert (0, "") == (done.returncode, done.stderr)


def test_without_a_script():
    """A script is assumed, so that the command can be shown."""
    done = explain()
    assert (0, f"runs: {sys.executable} train.py") == (done.returncode, done.stdout.splitlines()[-1])


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("secret", ["s3cr3t-value", 'quo"ted-\\value'])
def test_secrets_are_masked(output, secret):
    """No form shows a secret, however it is written and wherever it stands."""
    environ = {"HF_TOKEN": secret, "TRAINER_AGENT_X_PASSWORD": secret, "PET_NNODES": "1", "PET_MASTER_ADDR": secret}
    done = explain("--output", output, "--", "train.py", secret, **environ)
    text = done.stdout if output == "text" else str(json.loads(done.stdout))
    assert (0, "", 3, 0) == (done.returncode, done.stderr, text.count("***"), text.count(secret))


@pytest.mark.parametrize("secret", ["settings", "exit_code", '": "'])
def test_no_secret_breaks_the_document(secret):
    """Keys stay, whatever somebody's password is."""
    done = explain("--output", "json", HF_TOKEN=secret)
    assert (0, 0) == (done.returncode, json.loads(done.stdout)["exit_code"])


@pytest.mark.parametrize(
    "environ, code", [({"PET_NNODES": "x"}, 30), ({"PET_NNODES": "1", "PET_NPROC_PER_NODE": "gpu"}, 30), ({}, 0)]
)
def test_exit_codes(environ, code):
    """The exit code is what launch would give up with."""
    assert code == explain(**environ).returncode


def test_passwords_in_uris_are_not_shown():
    """Whatever the variable is called; other values keep their characters."""
    uris = "https://user:secret1@one/path?token=secret2, http://user:secret3@two"
    done = explain("--output", "json", TRAINER_AGENT_STATUS_URL=uris, PET_RDZV_ENDPOINT="c10d://u:secret4@here:1")

    assert "secret" not in done.stdout + done.stderr
    values = {row["setting"]: row["value"] for row in json.loads(done.stdout)["settings"]}
    assert "https://***@one/path, http://***@two" == values["TRAINER_AGENT_STATUS_URL"]


def test_a_variable_that_nobody_reads_is_no_option():
    """The nearest is named; a variable that a check of somebody else's may read is none of ours."""
    known = ("INIT_ALL_STREAMS", "PREFLIGHT_NODE_NAME", "CHECKS_CHECKS_DIR", "LOG_FORMAT", "GPU_THRESHOLDS")
    environ = {f"TRAINER_AGENT_{name}": "auto" for name in (*known, "PREFLIGHT_SKP", "ACME_WIDGETS")}
    done = explain("--output", "json", **environ)

    effects = {row["setting"]: row["effect"] for row in json.loads(done.stdout)["settings"]}
    no = "no option of trainer-agent"
    assert f"{no}, which has TRAINER_AGENT_PREFLIGHT_SKIP" == effects["TRAINER_AGENT_PREFLIGHT_SKP"]
    assert no == effects["TRAINER_AGENT_ACME_WIDGETS"]
    assert {"an option of trainer-agent"} == {effects[f"TRAINER_AGENT_{name}"] for name in known}
