"""wrap: the command behind torchrun and mpirun on PATH, with programs that say how they were started."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_agent.bundle.scripts import WRAPPED, outer

pytestmark = pytest.mark.lab

TOLD = """#!/bin/sh
echo "$(basename "$0")" "$@"
env | sort >{environment}
grep SigIgn /proc/$$/status
exit 7
"""
# What Python ignores of itself must not be handed on; what whoever starts us ignores is his affair.
PYTHONS = sum(1 << (signum - 1) for signum in (signal.SIGPIPE, signal.SIGXFSZ))
HIDDEN = "ignored by Python: 0"
ALONE = {"TRAINER_AGENT_RUN_STEPS": "launch"}


class Image:
    """A directory with wrappers, `bin/trainer-agent` and, behind them, programs that tell how they were started."""

    def __init__(self, root):
        self.root = root
        self.environment = root / "environment"
        for name, text in outer("v1", "lib/python", "lib/ld.so").items():
            if name.startswith("wrappers/"):
                self.write(name, text)
        self.write("bin/trainer-agent", f'#!/bin/sh\nexec "{sys.executable}" -m trainer_agent "$@"\n')
        for name in WRAPPED:
            self.write(f"real/{name}", TOLD.format(environment=self.environment))
        self.env = {"PATH": f"{root}/wrappers:{root}/real:/usr/bin:/bin", "HOME": str(root), "LC_ALL": "C.UTF-8"}

    def write(self, place, text):
        file = self.root / place
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def run(self, *words, **environ):
        """Return exit code, standard output and what the agent logged."""
        env = {**self.env, **environ}
        done = subprocess.run(words, env=env, cwd=self.root, capture_output=True, text=True, check=False, timeout=60)
        logs = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        out = re.sub(r"SigIgn:\s(\w+)", lambda found: f"ignored by Python: {int(found[1], 16) & PYTHONS}", done.stdout)
        return done.returncode, out, logs

    @property
    def seen(self):
        """The environment of the program that told, without what its shell adds."""
        lines = (line.partition("=") for line in self.environment.read_text().splitlines())
        return {name: value for name, _, value in lines if name not in ("PWD", "OLDPWD", "SHLVL", "_")}


@pytest.fixture
def image(tmp_path):
    return Image(tmp_path)


@pytest.mark.parametrize("switch", ["0", "false", "OFF", " no "])
@pytest.mark.parametrize("program", WRAPPED)
def test_switched_off_it_is_the_real_program(image, program, switch):
    """Arguments, environment, signals and exit code are as without us, and nothing is logged."""
    words = ("--nnodes=2", "a b", "", "--", "-h", "t.py")
    code, out, logs = image.run(program, *words, TRAINER_AGENT_WRAP=switch, FOO="bar")
    assert (7, f"{program} --nnodes=2 a b  -- -h t.py\n{HIDDEN}\n", []) == (code, out, logs)
    assert {**image.env, "TRAINER_AGENT_WRAP": switch, "FOO": "bar"} == image.seen


def test_below_the_agent_it_is_the_real_program(image):
    """What the agent has started bears a mark."""
    code, out, logs = image.run("torchrun", "t.py", TRAINER_AGENT_WRAPPED="1")
    assert (7, f"torchrun t.py\n{HIDDEN}\n", []) == (code, out, logs)
    assert {**image.env, "TRAINER_AGENT_WRAPPED": "1"} == image.seen


@pytest.mark.parametrize(
    "words",
    [
        ("torchrun",),
        ("torchrun", "-h"),
        ("torchrun", "--help"),
        ("torchrun", "--nnodes=2", "--hel", "t.py"),
        ("torchrun", "--nnodes=2"),
        ("mpirun",),
        ("mpirun", "--version"),
        ("mpirun", "-V"),
        ("mpirun", "-np", "2", "--help"),
        ("mpirun", "-np", "2", "hostname"),
        ("mpirun", "--hostfile", "hosts", "--version"),
        ("mpiexec", "-h"),
        ("mpiexec", "-n", "2", "--hostfile", "hosts"),
    ],
)
def test_what_starts_no_training_is_the_real_program_at_once(image, words):
    """Questions, commands without a program, and an mpirun of no job; no step begins."""
    code, out, logs = image.run(*words)
    assert (7, f"{' '.join(words)}\n{HIDDEN}\n", []) == (code, out, logs)
    assert image.env == image.seen


@pytest.mark.parametrize("words", [("--foo", "t.py"), ("--nnodes=two", "t.py"), ("--nproc", "2", "t.py")])
def test_what_only_torchrun_can_answer(image, words):
    """A mistake goes to torchrun word for word, and the log says that the agent steps aside."""
    code, out, logs = image.run("torchrun", *words)
    assert (7, f"torchrun {' '.join(words)}\n{HIDDEN}\n") == (code, out)
    assert [("torchrun-flag-unknown", "warning")] == [(line["code"], line["level"]) for line in logs]
    name = words[0]
    message = f"{name!r} among torchrun's own words is nothing that we understand: torchrun starts without the agent"
    assert message == logs[0]["event"]


def test_training_goes_the_whole_way(image):
    """Steps as in `run`, by its variables; torchrun gets its flags, a marked environment and a PATH without us."""
    environ = {"TRAINER_AGENT_PREFLIGHT_CHECKS": "environment", "PET_NNODES": "1", "PET_NPROC_PER_NODE": "1"}
    code, out, logs = image.run("torchrun", "--tee", "3", "t.py", "--nnodes", "9", **environ)
    assert (7, f"torchrun --standalone --nproc-per-node 1 --tee 3 t.py --nnodes 9\n{HIDDEN}\n") == (code, out)
    steps = [(line["step"], line.get("exit_code")) for line in logs if line["event"].startswith("step ")]
    assert [("preflight", None), ("preflight", 0), ("initialize", None)] == steps[:3]
    assert ("launch", None) == steps[-1]
    seen = image.seen
    assert ("1", f"{image.root}/real:/usr/bin:/bin") == (seen["TRAINER_AGENT_WRAPPED"], seen["PATH"])
    assert [] == [name for name in seen if name.startswith("PET_")]


def test_a_preflight_that_fails_keeps_training_from_starting(image):
    """Its exit code is the wrapper's, and the real program does not run."""
    environ = {"TRAINER_AGENT_PREFLIGHT_CHECKS": "environment", "PET_NNODES": "2", "PET_NODE_RANK": "5"}
    code, out, _ = image.run("torchrun", "t.py", PET_MASTER_ADDR="h", **environ)
    assert (30, "", False) == (code, out, image.environment.exists())


def test_a_flag_that_differs_from_its_variable(image):
    """The command counts, and the log names both."""
    environ = {**ALONE, "PET_NNODES": "4", "PET_NODE_RANK": "3", "PET_MASTER_ADDR": "h"}
    code, out, logs = image.run("torchrun", "--nnodes=1", "--node-rank=0", "t.py", **environ)
    assert (7, f"torchrun --nnodes=1 --node-rank=0 --nproc-per-node 1 t.py\n{HIDDEN}\n") == (code, out)
    said = [line["event"] for line in logs if line.get("code") == "torchrun-flag-differs"]
    assert [
        "the command says --nnodes=1 and the environment PET_NNODES=4: the command counts",
        "the command says --node-rank=0 and the environment PET_NODE_RANK=3: the command counts",
    ] == said


@pytest.mark.parametrize("number", [1, 3])
def test_it_never_calls_itself(image, number):
    """With the wrappers several times on PATH, a link and a copy of them, the real program starts once."""
    image.write("copies/torchrun", (image.root / "wrappers/torchrun").read_text())
    image.write("copies/else", "")
    (image.root / "links").mkdir()
    (image.root / "links/torchrun").symlink_to(image.root / "wrappers/torchrun")
    ours = ":".join(f"{image.root}/{name}" for name in ("wrappers", "links", "copies") * number)
    code, out, logs = image.run("torchrun", "t.py", **ALONE, PATH=f"{ours}:{image.root}/real:/usr/bin:/bin")
    assert (7, f"torchrun --standalone --nproc-per-node 1 t.py\n{HIDDEN}\n") == (code, out)
    assert 1 == len([line for line in logs if line["event"] == "launching"])


def test_a_script_below_us_finds_the_real_one(image):
    """Even where it puts the wrappers first on PATH again, as a login shell may."""
    image.write("train.sh", f'#!/bin/sh\nPATH="{image.root}/wrappers:$PATH" exec torchrun inner.py\n')
    code, out, logs = image.run(str(image.root / "bin/trainer-agent"), "launch", "./train.sh")
    assert (7, f"torchrun inner.py\n{HIDDEN}\n") == (code, out)
    assert ["launching"] == [line["event"] for line in logs]


def test_a_shell_below_us_launches_by_the_wrapper(image):
    """As under the SDK's container backend: only there do flags say who the nodes are; what was checked is enough."""
    environ = {"TRAINER_AGENT_PREFLIGHT_CHECKS": "environment", "TRAINER_AGENT_LAUNCH_SUPERVISE": "1"}
    words = ("run", "--", "bash", "-c", "torchrun --nproc-per-node=3 t.py; exit $?")
    code, out, logs = image.run(str(image.root / "bin/trainer-agent"), *words, **environ)
    assert (7, f"torchrun --standalone --nproc-per-node 3 t.py\n{HIDDEN}\n") == (code, out)
    assert ["preflight", "initialize", "launch", "launch"] == [x["step"] for x in logs if x["event"] == "step begins"]
    commands = [line["command"].split()[0] for line in logs if line["event"] == "launching"]
    assert ["bash", f"{image.root}/real/torchrun"] == commands


@pytest.fixture
def mpi(image):
    """Return an image with an Open MPI 5 that says only which it is, and the variables of a job of it."""
    image.write("real/mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    image.write("run.sh", "#!/bin/sh\nTRAINER_AGENT_LAUNCH_DRY_RUN=1 mpirun train\n")
    (image.root / "hostfile").write_text("a slots=1\nb slots=1\n")
    return image, {**ALONE, "TRAINER_AGENT_LAUNCH_HOSTFILE": str(image.root / "hostfile")}


ON_ALL_HOSTS = "--hostfile /dev/shm/trainer-agent-mpi/hostfile"


@pytest.mark.parametrize(
    "line",
    [
        *(
            "bash run.sh",
            "./run.sh",
            "timeout 9 bash run.sh",
            "nice ./run.sh",
            "env -u X bash -c 'TRAINER_AGENT_LAUNCH_DRY_RUN=1 mpirun train'",
        ),
        *("timeout -s KILL 9 env TRAINER_AGENT_LAUNCH_DRY_RUN=1 mpirun train", "stdbuf -o L bash run.sh"),
    ],
)
def test_an_mpirun_below_us_is_started_by_the_wrapper(mpi, line):
    """Whatever starts it: by itself Open MPI 5 would run on this host alone, and exit 0."""
    image, environ = mpi
    code, out, _ = image.run(str(image.root / "bin/trainer-agent"), "launch", "--", *shlex.split(line), **environ)
    assert (0, True) == (code, ON_ALL_HOSTS in out)


def test_torchrun_and_mpirun_in_one_script(mpi):
    """The hosts of the variable are mpirun's alone."""
    image, environ = mpi
    script = "torchrun --standalone prep.py; test $? = 7 && ./run.sh"
    code, out, logs = image.run("bash", "-c", script, **environ)
    torchrun, _, *rest = out.splitlines()
    assert (0, "torchrun --standalone --nproc-per-node 1 prep.py", 1) == (code, torchrun, len(rest))
    assert ON_ALL_HOSTS in rest[0]
    assert [("hostfile-unused", "warning")] == [
        (x["code"], x["level"]) for x in logs if "hostfile" in x.get("code", "")
    ]


def test_the_agents_own_torchrun_is_the_real_one(image):
    """`launch -- train.py` does not start a wrapper."""
    image.write("copies/torchrun", (image.root / "wrappers/torchrun").read_text())
    image.write("copies/else", "")
    environ = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1", "PATH": f"{image.root}/copies:{image.env['PATH']}"}
    agent = str(image.root / "bin/trainer-agent")
    code, out, _ = image.run(agent, "launch", "--dry-run", "--python", f"{image.root}/none/python", "t.py", **environ)
    assert (0, f"{image.root}/real/torchrun --standalone --nproc-per-node 1 t.py\n") == (code, out)


def test_nothing_behind_it(image):
    """One message, and the exit code of a configuration that no other node would help."""
    code, out, logs = image.run("torchrun", "t.py", PATH=f"{image.root}/wrappers:/usr/bin:/bin")
    assert (30, "", ["wrap-program-missing"]) == (code, out, [line["code"] for line in logs])


def test_a_real_program_that_the_kernel_refuses(image):
    """The message names it and the reason."""
    image.write("real/torchrun", "#!/no/such/shell\n")
    code, out, logs = image.run("torchrun", "--help")
    message = f"cannot start {image.root}/real/torchrun: No such file or directory"
    assert (30, "", [("wrap-not-started", message)]) == (code, out, [(line["code"], line["event"]) for line in logs])


def test_a_wrong_switch(image):
    """It is said before anything else happens."""
    code, out, logs = image.run("torchrun", "t.py", TRAINER_AGENT_WRAP="perhaps")
    assert (30, "", ["wrap-invalid"]) == (code, out, [line["code"] for line in logs])
    assert not image.environment.exists()


def test_no_program(image):
    """Wrong usage, as of any command."""
    code, out, _ = image.run(str(image.root / "bin/trainer-agent"), "wrap")
    assert (2, "") == (code, out)


@pytest.mark.parametrize("supervise", ["0", "1"])
def test_rank_0_can_be_reached_before_torchrun_listens(image, unused_port, supervise):
    """As the SDK has the other nodes wait for the port in a shell, it opens with the first step, and is free then."""
    image.write("checks/knock", KNOCK.format(python=sys.executable, port=unused_port))
    image.write("real/torchrun", KNOCK.format(python=sys.executable, port=unused_port))
    flags = ("--nnodes=2", "--node-rank=0", "--rdzv-backend=static", f"--rdzv-endpoint=127.0.0.1:{unused_port}")
    checks = {"TRAINER_AGENT_PREFLIGHT_CHECKS": "knock", "TRAINER_AGENT_PREFLIGHT_CHECKS_DIR": f"{image.root}/checks"}
    environ = {**checks, "TRAINER_AGENT_LAUNCH_SUPERVISE": supervise}
    code, out, logs = image.run("torchrun", *flags, "t.py", **environ)
    knocks = (image.root / "knocks").read_text().splitlines()
    assert (0, ["reached", "refused"]) == (code, knocks), (out, logs)


def test_nodes_without_ranks_do_not_wait_for_each_other(image, unused_port):
    """With c10d all of them would be rank 0 in the preflight's meeting; torchrun itself gives out ranks."""
    flags = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{unused_port}")
    environ = {"TRAINER_AGENT_PREFLIGHT_CHECKS": "environment,roll-call", "HOSTNAME": "box"}
    code, out, _ = image.run("torchrun", *flags, "t.py", **environ)
    place = f"--nnodes 2:2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{unused_port} --rdzv-id none"
    conf = "--rdzv-conf join_timeout=900,read_timeout=900"
    assert (7, f"torchrun {place} {conf} --nproc-per-node 1 t.py\n{HIDDEN}\n") == (code, out)


KNOCK = """#!{python}
# A check, and then torchrun: whether the port answers.
import json, socket
try:
    socket.create_connection(("127.0.0.1", {port}), 5).close()
    said = "reached"
except ConnectionRefusedError:
    said = "refused"
print(json.dumps({{"status": "pass", "message": said}}))
open("{{}}/knocks".format(__file__.rpartition("/")[0].rpartition("/")[0]), "a").write(said + "\\n")
"""


@pytest.fixture
def unused_port():
    """Return a port that nobody listens on."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_interrupted_while_it_checks(image):
    """SIGTERM during the preflight ends it with 143, and the real program does not start."""
    image.write("checks/slow", "#!/bin/sh\necho begun >begun\nexec sleep 60\n")
    environ = {"TRAINER_AGENT_PREFLIGHT_CHECKS": "slow", "TRAINER_AGENT_PREFLIGHT_CHECKS_DIR": f"{image.root}/checks"}
    words = [str(image.root / "wrappers/torchrun"), "t.py"]
    with subprocess.Popen(words, env={**image.env, **environ}, cwd=image.root, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:  # the first line says that the preflight begins
            if b"step begins" in line:
                break
        os.kill(process.pid, signal.SIGTERM)
        process.stderr.read()
        assert 143 == process.wait(60)
    assert not Path(image.environment).exists()
