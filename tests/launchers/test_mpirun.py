"""mpirun as a launcher: through build, through `launch --dry-run` and through `explain`."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from trainer_agent.hostfile import Entry, Hostfile
from trainer_agent.launchers import Job, build
from trainer_agent.mpi import words
from trainer_agent.mpi.implementation import Implementation
from trainer_agent.mpi.plan import SHIM, Plan
from trainer_agent.mpi.suits import NAMED
from trainer_agent.nproc import Decision
from trainer_agent.topology import read_topology
from trainer_agent.wrappers import MARK

AGENT = (sys.executable, "-m", "trainer_agent")
FOLDER = "/dev/shm/trainer-agent-mpi"
SAYS = {
    "openmpi-4": "mpirun (Open MPI) 4.1.4",
    "openmpi-5": "mpirun (Open MPI) 5.0.11",
    "mpich": "HYDRA build details:\\n    Version: 4.0.2",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 1",
}
FAN_OUT = {"openmpi-4": ("--mca", "routed_radix", "2"), "openmpi-5": ("--prtemca", "rml_base_radix", "2")}


def job(line, *, kind="openmpi", decision=None, environ=None, **settings):
    environ = environ or {"PATH": "/bin"}
    hosts = Hostfile((Entry("n-0.job", 2), Entry("n-1.job", 2)))
    plan = Plan(Implementation(kind, "5.0.11"), hosts, words.parse(line.split()), (), "python3", environ, **settings)
    topology = read_topology({}, hostname="box")
    return Job(
        topology, decision or Decision(2, ""), tuple(line.split()), environ, "python3", ("torchrun",), 9.0, mpi=plan
    )


def test_an_mpi_job_is_mpiruns():
    """auto takes it where there is a plan, and hands the plan on for the waiting that comes first."""
    name, command = build(job("mpirun -np 4 app"))
    ssh = ("--mca", "plm_rsh_args", f"-i {FOLDER}/id_rsa …", *FAN_OUT["openmpi-5"])
    start = ("python3", "-IS", str(SHIM), "app")
    ours = ("mpirun", "--hostfile", f"{FOLDER}/hostfile", *ssh, "--bind-to", "none")
    assert ("mpirun", (*ours, "-x", "PATH", "-x", "TRAINER_AGENT_RANKS", "-np", "4", *start)) == (name, command.argv)
    assert ({"PATH": "/bin"}, "", False) == (dict(command.env), command.note, command.elastic_agent)
    assert command.mpi == job("mpirun -np 4 app").mpi


@pytest.mark.parametrize("decision, slots", [(Decision(8, "", changed=True), 8), (Decision(8, ""), 2)])
def test_slots(decision, slots):
    """What was decided goes into the hostfile where it is something else."""
    plan = build(job("mpirun app", decision=decision))[1].mpi
    assert {slots} == {entry.slots for entry in plan.hosts.entries}


def test_threads():
    """OMP_NUM_THREADS reaches the ranks like any other variable of libraries."""
    command = build(job("mpirun app", decision=Decision(2, "", omp_threads=3)))[1]
    assert ("3", "OMP_NUM_THREADS" in command.argv) == (command.mpi.environ["OMP_NUM_THREADS"], True)


@pytest.mark.parametrize(
    "line, why",
    [
        ("mpirun --new app", "nobody checks where mpirun puts the ranks: --new is an option that we do not know"),
        ("mpirun app", "nobody checks where mpirun puts the ranks: that is not wanted"),
    ],
)
def test_a_job_that_nobody_verifies(line, why):
    """The user should know, and why."""
    command = build(job(line, verified=False))[1]
    assert (why, False) == (command.note, str(SHIM) in command.argv)


@pytest.fixture
def image(tmp_path):
    """Return what an image with an mpirun, and a controller's hostfile, look like."""

    def make(name, *, slots=2):
        path = tmp_path / "mpirun"
        path.write_text(f"#!/bin/sh\nprintf '{SAYS[name]}\\n'\n")
        path.chmod(0o755)
        between = " slots=" if name.startswith("openmpi") else ":"
        (tmp_path / "hostfile").write_text("".join(f"n-{number}.job{between}{slots}\n" for number in range(2)))
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}, str(tmp_path / "hostfile")

    return make


def run(command, *line, **environ):
    return subprocess.run([*AGENT, command, *line], env=environ, capture_output=True, text=True, check=False)


AS_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()


@pytest.mark.lab
@pytest.mark.parametrize("name", SAYS)
def test_dry_run_under_a_controller(image, name):
    """With a controller's variables a Python script becomes an MPI job; nobody is waited for."""
    environ, hostfile = image(name)
    variable = "OMPI_MCA_orte_default_hostfile" if name.startswith("openmpi") else "HYDRA_HOST_FILE"
    done = run("launch", "--dry-run", "--python", "/opt/python", "train.py", **environ, **{variable: hostfile})
    start = ("/opt/python", "-IS", str(SHIM), "/opt/python", "train.py")
    ssh = ("--mca", "plm_rsh_args", f"-i {FOLDER}/id_rsa …", *FAN_OUT.get(name, ()))
    fqdn = ("--mca", "orte_keep_fqdn_hostnames", "true") if name == "openmpi-4" else ()
    openmpi = (*AS_ROOT, "--hostfile", f"{FOLDER}/hostfile", *ssh, *fqdn, "--bind-to", "none", "-x", "PATH", "-x", MARK)
    openmpi = (*openmpi, "-x", "TRAINER_AGENT_RANKS", *start)
    expected = openmpi if name.startswith("openmpi") else ("-machinefile", f"{FOLDER}/hostfile", *start)
    assert (0, ["mpirun", *expected]) == (done.returncode, shlex.split(done.stdout)), done.stderr


@pytest.mark.lab
def test_dry_run_of_the_users_own_mpirun(image):
    """Its hostfile is read, and ours is named instead; its words for ssh come first."""
    environ, hostfile = image("openmpi-5")
    line = ("mpirun", "--hostfile", hostfile, "--mca", "plm_rsh_args", "-p 2222", "-np", "4", "bash", "-c", "a b")
    done = run("launch", "--dry-run", "--no-verify", "--", *line, **environ)
    ssh = ("--mca", "plm_rsh_args", f"-p 2222 -i {FOLDER}/id_rsa …", *FAN_OUT["openmpi-5"])
    ours = (*AS_ROOT, "--hostfile", f"{FOLDER}/hostfile", *ssh, "--bind-to", "none", "-x", "PATH", "-x", MARK)
    expected = ["mpirun", *ours, "-np", "4", "bash", "-c", "a b"]
    assert (0, expected) == (done.returncode, shlex.split(done.stdout)), done.stderr


@pytest.mark.lab
@pytest.mark.parametrize(
    "words_, variables, code",
    [
        (("--hostfile", "/no/such", "train.py"), {"HYDRA_HOST_FILE": "/etc/hosts"}, "hostfile-unreadable"),
        (("mpirun", "--hostfile", "{hostfile}"), {}, "mpirun-empty"),
        (("train.py",), {"HYDRA_HOST_FILE": "{hostfile}", "PATH": "/nowhere"}, "mpirun-missing"),
        (("--nproc", "gpu", "train.py"), {"HYDRA_HOST_FILE": "{hostfile}"}, "nproc-not-known"),
        (("--launcher", "mpirun", "--hostfile", "/dev/null", "train.py"), {}, "hostfile-empty"),
        (("--hostfile", "/no/such", "train.py"), {}, "hostfile-unreadable"),
        (("--hostfile", "/no/such", "--launcher", "python", "train.py"), {}, "hostfile-unused"),
        (("--hostfile", "{hostfile}", "train.py"), {"PET_NNODES": "1"}, "hostfile-unused"),
        (("--hostfile", "{hostfile}", "train.py"), {"K_MPI_JOB_ROLE": "worker"}, "hostfile-unused"),
        (("--hostfile", "{hostfile}", "bash", "-c", "mpirun train"), {}, "hostfile-unused"),
    ],
)
def test_jobs_that_cannot_be(image, tmp_path, words_, variables, code):
    """What is wrong is one log line with a code, the exit code for stop, and the same in the termination log."""
    environ, hostfile = image("mpich")
    log = tmp_path / "termination-log"
    variables = {name: value.replace("{hostfile}", hostfile) for name, value in variables.items()}
    line = (each.replace("{hostfile}", hostfile) for each in words_)
    done = run("launch", "--dry-run", "--termination-log", str(log), *line, **{**environ, **variables})
    assert (30, "", code) == (done.returncode, done.stdout, json.loads(log.read_text())["code"]), done.stderr


@pytest.mark.lab
@pytest.mark.parametrize("line", [("train.py",), ("mpirun", "app"), ("bash", "run.sh")])
@pytest.mark.parametrize("by_option", [True, False])
def test_a_hostfile_makes_it_an_mpi_job(image, line, by_option):
    """By option or variable, and without a controller: the command is for all hosts, not for this one alone."""
    environ, hostfile = image("mpich")
    given, variable = (("--hostfile", hostfile), {}) if by_option else ((), {NAMED: hostfile})
    done = run("launch", "--dry-run", *given, *line, **environ, **variable)
    expected = ["mpirun", "-machinefile", f"{FOLDER}/hostfile"]
    assert (0, expected) == (done.returncode, shlex.split(done.stdout)[:3]), done.stderr


@pytest.mark.lab
@pytest.mark.parametrize(
    "line",
    [
        *("bash run_job.sh", "run_job.sh", "timeout -s KILL 9 bash run_job.sh", "env X=1 mpirun train.py"),
        *("sudo -E -u mpiuser mpirun train.py", "horovodrun -np 2 train.py", "deepspeed train.py"),
    ],
)
def test_what_starts_the_ranks_itself_is_started_once(image, tmp_path, line):
    """As it is, in the launcher's pod: on every rank there would be too many of it."""
    environ, hostfile = image("openmpi-4")
    (tmp_path / "run_job.sh").write_text("#!/bin/sh\nset -e\nnumactl -N 0 mpirun -np 2 train.py\n")
    (tmp_path / "run_job.sh").chmod(0o755)
    line = line.replace("run_job.sh", str(tmp_path / "run_job.sh"))
    done = run("launch", "--dry-run", *line.split(), **environ, OMPI_MCA_orte_default_hostfile=hostfile)
    assert (0, f"{line}\n") == (done.returncode, done.stdout), done.stderr


@pytest.mark.lab
def test_the_hostfile_of_a_variable_is_left_to_the_mpirun_in_a_shell(image):
    """Our wrapper, which that is where one is installed, reads it."""
    environ, hostfile = image("openmpi-5")
    done = run("launch", "--dry-run", "bash", "-c", "mpirun app", **environ, **{NAMED: hostfile})
    assert (0, "bash -c 'mpirun app'\n") == (done.returncode, done.stdout), done.stderr


@pytest.mark.lab
@pytest.mark.parametrize(
    "flags", ["--standalone", "--nnodes 2 --node-rank 0", "--master_addr n-0", "--rdzv_endpoint=n-0:1"]
)
def test_a_torchrun_needs_no_hostfile_of_a_variable(image, flags):
    """It is for another command of the same image; that its own flags count is a warning."""
    environ, hostfile = image("openmpi-5")
    done = run(
        "launch", "--dry-run", "--nproc", "1", "--", "torchrun", *flags.split(), "a.py", **environ, **{NAMED: hostfile}
    )
    assert (0, True) == (done.returncode, f"torchrun {flags}" in done.stdout), done.stderr
    said = next(line for line in map(json.loads, done.stderr.splitlines()) if line.get("code") == "hostfile-unused")
    assert ("warning", True) == (said["level"], said["event"].startswith(f"{NAMED}={hostfile} is for mpirun"))


@pytest.mark.lab
@pytest.mark.parametrize(
    "given, variables, flags",
    [
        (("--hostfile", "{}"), {}, "--standalone"),
        ((), {NAMED: "{}", "PET_NNODES": "1"}, "--rdzv-endpoint n:1"),
        ((), {NAMED: "{}"}, "--nproc-per-node 1"),
        ((), {NAMED: "{}"}, "--rdzv-backend c10d --master-port 1"),
    ],
)
def test_a_torchrun_that_has_a_hostfile_all_the_same(image, given, variables, flags):
    """Given by hand it is a mistake; so it is where a controller, or no flag, says who the nodes are."""
    environ, hostfile = image("openmpi-5")
    words_ = [word.format(hostfile) for word in given]
    variables = {name: value.format(hostfile) for name, value in variables.items()}
    own = ("torchrun", *flags.split(), "a.py")
    done = run("launch", "--dry-run", *words_, "--", *own, **environ, **variables)
    assert (30, "", True) == (done.returncode, done.stdout, "hostfile-unused" in done.stderr), done.stderr


@pytest.mark.lab
def test_explain(image):
    """The MPI, the hosts, the variables that were read, and the command."""
    environ, hostfile = image("intel", slots=4)
    injected = {"I_MPI_HYDRA_HOST_FILE": hostfile, "K_MPI_JOB_ROLE": "launcher"}
    done = run("explain", "--output", "json", "./app", **environ, **injected)
    found = json.loads(done.stdout)
    rows = {row["setting"]: (row["value"], row["origin"], row["effect"]) for row in found["settings"]}
    assert ("mpi", 0, []) == (found["runtime"], done.returncode, found["problems"])
    assert (hostfile, "environment", "the hosts, as Intel MPI is told") == rows["I_MPI_HYDRA_HOST_FILE"]
    assert ("intel 2021.18", "mpirun --version", "whose options are used") == rows["MPI"]
    assert ("2", "hostfile", "n-0.job with 4, n-1.job with 4") == rows["hosts"]
    assert ("4", "decision") == rows["processes"][:2]
    assert shlex.split(found["command"])[:3] == ["mpirun", "-machinefile", f"{FOLDER}/hostfile"]
