"""What Kubeflow's SDK sends, in pods whose image has our wrappers first on PATH: real shells, torchrun and mpirun."""

from __future__ import annotations

import signal

import pytest
from mpi_programs import HOSTFILE
from mpilab import OF_THE_IMAGE, MpiJob, ranks, script
from podlab import AGENT, MASTER, PATH, PORT, SCRIPTS

from trainer_agent.bundle.scripts import outer

pytestmark = pytest.mark.lab

PET = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": MASTER,
    "PET_MASTER_PORT": str(PORT),
    "TRAINER_AGENT_PREFLIGHT_CHECKS": "environment,roll-call",
}
ALONE = {"TRAINER_AGENT_RUN_STEPS": "launch", "PET_NNODES": "1", "PET_NPROC_PER_NODE": "1"}
OFF = {"TRAINER_AGENT_WRAP": "0"}
SAY = 'echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"'
# As its Kubernetes backend has it: the script is written by the shell, and torchrun stands last.
CLUSTER = """
read -r -d '' SCRIPT << EOM

SAY

EOM
printf "%s" "$SCRIPT" > "say"
torchrun --no-python sh "say"
""".replace("SAY", SAY.replace("$", "\\$"))
# As its container backend has it: all but the first wait until rank 0 can be reached, and the shell stays.
CONTAINER = """for i in {{1..60}}; do if [ {rank} -eq 0 ] || \
timeout 1 bash -c 'cat < /dev/null > /dev/tcp/{address}/{port}' 2>/dev/null; then break; fi; \
if [ $i -eq 60 ]; then exit 9; fi; sleep 0.2; done; \
if command -v torchrun >/dev/null 2>&1; then \
  torchrun --nproc_per_node=1 --nnodes=2   --node-rank={rank} --rdzv-backend=static   \
--rdzv-endpoint={address}:{port}   --no-python sh -c '{say}'; else exit 8; fi"""
# Ways to start torchrun from a shell that is PID 1: bash becomes what stands last, and otherwise stays.
LAST = ("torchrun {}", "true\ntorchrun {}\n")
NOT_LAST = "if true; then torchrun {}; fi"
TRAIN = f"{SCRIPTS / 'train.py'} checkpoint"


@pytest.fixture
def wrapped(tmp_path):
    """Return the PATH of an image with our wrappers first."""
    folder = tmp_path / "trainer-agent"
    for name, text in outer("v1", "lib/python", "lib/ld.so").items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if name.startswith("wrappers/") else f'#!/bin/sh\nexec "{AGENT}" "$@"\n')
        file.chmod(0o755)
    return f"{folder}/wrappers:{PATH}"


def test_what_the_sdk_sends_to_a_cluster(lab, wrapped):
    """Two nodes meet in the preflight before their torchruns do; the program's output is alone on standard output."""
    lab.publish()
    nodes = [lab[rank].run("bash", "-c", CLUSTER, env={**PET, "PATH": wrapped}) for rank in range(2)]
    for rank, node in enumerate(nodes):
        assert 0 == node.wait(), node.story()
        assert f"rank {rank} of 2 at {MASTER}:{PORT}\n" == node.stdout
        assert "all 2 nodes are here" in node.stderr
    assert "pass" == nodes[0].log("verdict")["verdict"]


def test_what_the_sdk_sends_to_containers(lab, wrapped):
    """Flags alone say who the nodes are, and the second node starts only when it has reached the first."""
    lab.publish()
    env = {"PATH": wrapped, "TRAINER_AGENT_PREFLIGHT_CHECKS": "environment,roll-call"}
    addresses = (MASTER, lab[0].address)
    lines = [CONTAINER.format(rank=n, address=addresses[n], port=PORT, say=SAY) for n in range(2)]
    nodes = [lab[rank].run("bash", "-c", line, env=env) for rank, line in enumerate(lines)]
    for rank, node in enumerate(nodes):
        assert 0 == node.wait(), node.story()
        assert f"rank {rank} of 2 at {addresses[rank]}:{PORT}\n" == node.stdout
        assert "all 2 nodes are here" in node.stderr
    assert "pass" == nodes[0].log("verdict")["verdict"]


def test_switched_off_the_nodes_meet_without_us(lab, wrapped):
    """The same command, plain torchrun, and not a line of ours."""
    lab.publish()
    env = {**PET, "PATH": wrapped, **OFF}
    nodes = [lab[rank].run("bash", "-c", CLUSTER, env={**env, "PET_NODE_RANK": str(rank)}) for rank in range(2)]
    for rank, node in enumerate(nodes):
        assert (0, []) == (node.wait(), node.logs), node.story()
        assert f"rank {rank} of 2 at {MASTER}:{PORT}\n" == node.stdout


def test_a_node_that_fails_keeps_all_from_training(lab, wrapped):
    """Its preflight ends with its code, the other's within seconds, and nothing of the program runs."""
    lab.publish()
    env = {**PET, "PATH": wrapped, "TRAINER_AGENT_PREFLIGHT_CHECKS": "environment,roll-call,storage"}
    wrong = {**env, "TRAINER_AGENT_PREFLIGHT_STORAGE": "/proc/nothing"}
    nodes = [lab[0].run("bash", "-c", CLUSTER, env=env), lab[1].run("bash", "-c", CLUSTER, env=wrong)]
    codes = [node.wait() for node in nodes]
    assert ([True, True], ["", ""]) == ([code in (20, 30) for code in codes], [node.stdout for node in nodes])


@pytest.mark.parametrize("line", [LAST[0], NOT_LAST])
def test_how_torchrun_ended_is_how_the_container_ends(lab, wrapped, line):
    """Whether bash has become it or stays PID 1: the rank's own code and its last words are told."""
    env = {**ALONE, "PET_NPROC_PER_NODE": "2", "TRAINER_AGENT_LAUNCH_TERMINATION_LOG": "termination-log"}
    command = line.format(f"{SCRIPTS / 'fail.py'} exit42")
    container = lab[0].run("bash", "-c", command, env={**env, "PATH": wrapped})
    assert 42 == container.wait(), container.story()
    assert (42, 1) == (container.termination["exit_code"], container.termination["rank"])


@pytest.mark.parametrize("line", LAST)
def test_sigterm_gives_ranks_their_grace(lab, wrapped, line):
    """Where bash has become torchrun, the agent gets it: a rank saves its checkpoint of two seconds, exit 143."""
    container = lab[0].run("bash", "-c", line.format(TRAIN), env={**ALONE, "PATH": wrapped})
    container.printed("rank 0 trains")
    container.signal(signal.SIGTERM)
    assert 143 == container.wait(), container.story()
    assert 40 == len((container.directory / "checkpoint-0").read_text().splitlines())


@pytest.mark.parametrize("off", [{}, OFF], ids=["wrapped", "plain"])
def test_a_shell_that_stays_pid_1_keeps_sigterm_to_itself(lab, wrapped, off):
    """The contrast: the kernel drops what PID 1 has no handler for, so neither we nor torchrun ever hear of it."""
    container = lab[0].run("bash", "-c", NOT_LAST.format(TRAIN), env={**ALONE, "PATH": wrapped, **off})
    container.printed("rank 0 trains")
    container.signal(signal.SIGTERM)
    assert container.outlives(1.0)
    assert not (container.directory / "checkpoint-0").exists()


def test_ranks_that_start_torchrun_start_the_real_one(lab, wrapped):
    """Wrappers first on PATH again, below a rank: one agent, and no preflight of a second one."""
    inner = f"PATH=\"{wrapped}\" torchrun --nproc-per-node 2 --no-python sh -c 'echo inner of $WORLD_SIZE'"
    env = {**ALONE, "PATH": wrapped, "INNER": inner}
    container = lab[0].run("bash", "-c", "torchrun --no-python sh -c 'eval \"$INNER\"'", env=env)
    assert 0 == container.wait(), container.story()
    assert "inner of 2\n" * 2 == container.stdout
    assert 1 == sum(line["event"] == "launching" for line in container.logs)


def test_a_mistake_is_torchruns_to_answer(lab, wrapped):
    """Its words and its exit code, with one line of ours before."""
    plain, ours = (
        lab[0].run("bash", "-c", "torchrun --nnodes=2 --what t.py", env={**ALONE, "PATH": wrapped, **off})
        for off in (OFF, {})
    )
    assert (2, 2) == (plain.wait(), ours.wait())
    first, _, rest = ours.stderr.partition("\n")
    assert (True, plain.stderr) == ('"torchrun-flag-unknown"' in first, rest)


@pytest.fixture
def mpi(lab_of_mpi, implementation):
    """Return what makes an MPI job whose two workers listen."""

    def make(name):
        lab = lab_of_mpi(2)
        lab.publish()
        job = MpiJob(lab, implementation(name), nodes=2)
        job.workers_ready("agent")
        return job

    return make


def on_launcher(job, wrapped, line, **env):
    """Run a shell's line in the launcher, with wrappers before the implementation."""
    path = wrapped.replace(PATH, job.env["PATH"])
    own = {**job.implementation.injected(job.slots), **OF_THE_IMAGE, "PATH": path, **env}
    return job.run(job.launcher, "bash", "-c", line, env=own)


@pytest.mark.parametrize("name", ["openmpi-4", "mpich-4"])
def test_mpirun_goes_the_whole_way(mpi, wrapped, name):
    """What the SDK sends: all ranks on all hosts, after a preflight, with the hosts that the command names."""
    job = mpi(name)
    inner = f'test "$TRAINER_AGENT_WRAPPED" && type mpirun >&2 && exec {" ".join(script("who"))}'
    line = f"mpirun --hostfile {HOSTFILE} bash -c '{inner}'"
    container = on_launcher(job, wrapped, line, TRAINER_AGENT_PREFLIGHT_CHECKS="environment,mpi")
    assert 0 == container.wait(), container.story()
    assert 4 == len(ranks(container)), container.story()
    assert container.log("workers are ready")["command"].startswith("mpirun ")
    assert "wrappers/mpirun" not in container.stderr  # on no host do ranks find us


@pytest.mark.parametrize("name", ["openmpi-4", "mpich-4"])
def test_mpirun_of_no_job_is_plain(mpi, wrapped, name):
    """Without a hostfile of ours it finds itself behind the wrapper, and starts ranks here."""
    job = mpi(name)
    # On a busy machine plain MPICH 4 dies of SIGPIPE in one of eight runs whose ranks end at once.
    say = "sh -c 'sleep 0.3; echo rank'"
    line = f"umount {HOSTFILE}; rm {HOSTFILE}; mpirun -n 2 {say} && mpiexec -n 1 {say}"
    env = {**OF_THE_IMAGE, "PATH": wrapped.replace(PATH, job.env["PATH"])}
    container = job.run(job.workers[0], "bash", "-c", line, env=env)
    assert 0 == container.wait(), container.story()
    assert ("rank\n" * 3, []) == (container.stdout, container.logs), container.story()
