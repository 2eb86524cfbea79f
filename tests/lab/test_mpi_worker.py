"""`trainer-agent worker` in pods: who gets in, what sessions see, and what becomes of ranks when a pod is deleted."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
from mpilab import SSH_PORT, SSHD, USER_ID, MpiJob, script
from podlab import AGENT, children, eventually

from trainer_agent.shells import catches

pytestmark = pytest.mark.lab

TOKEN = "hf_not_for_anybody"
ODD = {
    "LD_LIBRARY_PATH": "/opt/lib:/opt/more lib",
    "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2",
    "CUDA_HOME": "",
    "CONFIG": '{"path": "C:\\\\new\\", "money": "$HOME `ls` $(ls)"}',
    "QUOTES": 'it\'s "quoted" \\" # no comment',
    "TABS": "\tand  spaces ",
    "K_MPI_JOB_ROLE": "worker",
    "HF_TOKEN": TOKEN,
}
WORKER = (AGENT, "worker", "--termination-log", "termination-log")
NOT_PASSED_ON = {"PWD", "OLDPWD", "TRAINER_AGENT_WORKER_GRACE", "TWO_LINES"}
OF_SSHD = {"USER", "LOGNAME", "SHELL", "MAIL", "PWD", "SSH_CLIENT", "SSH_CONNECTION", "SHLVL", "_"}
OF_PYTHON = {"LC_CTYPE"}  # where the container has no locale, as in PEP 538
MANY = 'for i in $(seq 25); do "$@" & pids="$pids $!"; done; for pid in $pids; do wait $pid || echo lost; done'
QUICK_S = 15.0  # of a grace of 25 s


@pytest.fixture
def mpi(lab_of_mpi, implementation):
    """Return what makes an MPI job, of Open MPI 4 unless told otherwise."""

    def make(*, nodes=1, name="openmpi-4", **options):
        lab = lab_of_mpi(nodes)
        lab.publish()
        return MpiJob(lab, implementation(name), nodes=nodes, **options)

    return make


def started(job, rank=0, *options, env=None):
    """Return a worker that has said that it is ready."""
    container = job.run(job.workers[rank], *WORKER, *options, env=env)
    eventually(lambda: '"ready"' in container.stderr or container.ended, what="the worker is ready")
    assert not container.ended, container.story()
    return container


def ssh(job, *command, user="root"):
    """Run a command on the first worker as a launcher does that checks the host's key; return its container."""
    folder = job.files("launcher")
    key = folder / "key"
    shutil.copyfile(job.key, key)
    shutil.chown(key, job.uid, job.uid)
    key.chmod(0o600)
    (folder / "known_hosts").write_text(f"[{job.hosts[0]}]:{SSH_PORT} {job.key.with_suffix('.pub').read_text()}")
    options = ("StrictHostKeyChecking=yes", f"UserKnownHostsFile={folder}/known_hosts", "BatchMode=yes")
    words = [word for option in options for word in ("-o", option)]
    return job.run(job.launcher, "ssh", "-i", str(key), *words, f"{user}@{job.hosts[0]}", *command)


def variables(text):
    """Return an environment as the kernel shows it."""
    return dict(pair.split("=", 1) for pair in text.split("\0") if pair)


def stop(container):
    """Send SIGTERM; return exit code and seconds until the end."""
    sent = container.signal(signal.SIGTERM)
    code = container.wait()
    return code, time.monotonic() - sent


def saved(folder):
    """Return the ranks whose checkpoints are whole."""
    return sorted(int(path.stem) for path in folder.glob("*.end"))


@pytest.mark.parametrize("uid,user", [(0, "root"), (USER_ID, "mpiuser")])
def test_a_session_sees_what_the_container_sees(mpi, uid, user):
    """With the key as Trainer mounts it, as root and as another user; the host's key is the one that all pods know."""
    job = mpi(uid=uid)
    container = started(job, env={**ODD, "TRAINER_AGENT_WORKER_GRACE": "3", "TWO_LINES": "one\ntwo"})
    done = ssh(job, "cat", "/proc/self/environ", user=user)
    assert 0 == done.wait(), done.story() + container.story()
    own = variables(Path(f"/proc/{container.pid}/environ").read_text())
    seen = variables(done.stdout)
    expected = {k: v for k, v in own.items() if k not in NOT_PASSED_ON}
    assert expected == {name: seen[name] for name in seen if name in expected}
    assert ODD.items() <= seen.items()
    assert seen.keys() - expected.keys() <= OF_SSHD | OF_PYTHON
    assert (3.0, SSH_PORT) == (container.log("ready")["grace_s"], container.log("ready")["port"])
    left_out = container.log("variables that sshd cannot give to sessions")
    assert (["TWO_LINES"], 1) == (left_out["names"], left_out["count"])
    assert TOKEN not in container.stderr


def test_plain_sshd_refuses_this_key(mpi):
    """The contrast: mode 0640, and sshd is root."""
    job = mpi()
    container = job.run(job.workers[0], SSHD, "-De", "-f", "/dev/null", "-o", "HostKey=/root/.ssh/id_rsa")
    assert 1 == container.wait()
    assert "Permissions 0640 for '/root/.ssh/id_rsa' are too open" in container.stderr


def test_the_configuration_is_on_memory_and_nobody_elses(mpi):
    """It has the container's variables in it; at the end it is gone."""
    job = mpi()
    container = started(job, env={"HF_TOKEN": TOKEN})
    shm = Path(f"/proc/{container.pid}/root/dev/shm")
    [folder] = shm.iterdir()
    assert {"id_rsa": 0o600, "sshd_config": 0o600} == {p.name: p.stat().st_mode & 0o777 for p in folder.iterdir()}
    assert TOKEN in (folder / "sshd_config").read_text()
    assert folder.stat().st_mode & 0o777 == 0o700
    commands = container.of_each(psutil.Process.cmdline)
    assert commands
    assert TOKEN not in str(commands)
    with_holder = Path(f"/proc/{container.pod.holder}/root/dev/shm")
    assert 143 == stop(container)[0]
    assert [] == list(with_holder.iterdir())


def test_many_sessions_at_once(mpi):
    """A launcher, or several, open them all at the same moment; by default sshd would drop one in three and more."""
    job = mpi()
    started(job)
    one = ssh(job, "true")
    assert 0 == one.wait()
    line = " ".join([*one.argv[:-1], "sleep 1"]).replace("sleep 1", "'sleep 1'")
    script_of_all = (
        f'for i in $(seq 40); do {line} & pids="$pids $!"; done; for p in $pids; do wait $p || echo lost; done'
    )
    together = job.run(job.launcher, "bash", "-c", script_of_all)
    assert 0 == together.wait()
    assert "" == together.stdout


def test_probes_leave_no_lines(mpi):
    """The kubelet connects every ten seconds as long as the pod lives; who logs in, or tries to, is told."""
    job = mpi()
    container = started(job)
    before = container.stderr
    place = f"/dev/tcp/{job.hosts[0]}/{SSH_PORT}"
    probe = f"for i in $(seq 5); do : <{place}; done; head -c 4 <{place}"
    probed = job.run(job.launcher, "bash", "-c", probe)
    assert (0, "SSH-") == (probed.wait(), probed.stdout)
    assert 255 == ssh(job, "true", user="nobody_else").wait()
    eventually(lambda: "nobody_else" in container.stderr, what="who was refused is told")
    assert [] == [line for line in container.stderr[len(before) :].splitlines() if "nobody_else" not in line]


def test_more_variables_than_sshd_can_take(mpi):
    """One per Service of a crowded namespace, seven times: those are left out, and sessions work."""
    job = mpi()
    services = {f"S{i}_PORT_80_TCP{end}": "x" for i in range(400) for end in ("", "_PORT", "_ADDR")}
    large = {f"LARGE_{i}": "x" * 70000 for i in range(4)}
    container = started(job, env={**services, **large, "ZEBRA": "seen"})
    done = ssh(job, "cat", "/proc/self/environ")
    assert 0 == done.wait(), done.story() + container.story()
    seen = variables(done.stdout)
    assert ("seen", job.env["PATH"]) == (seen["ZEBRA"], seen["PATH"])
    left_out = container.log("variables that sshd cannot give to sessions")
    assert 1 == len([name for name in left_out["names"] if name.startswith("LARGE_")])
    assert 1200 - 900 < left_out["count"] < 1200 - 880


@pytest.fixture
def training(mpi):
    """Return what starts a job of three nodes, one rank each, that train: its workers, and where checkpoints go."""

    def start(command, *options, how="agent", **settings):
        job = mpi(nodes=3, key_mode=0o600, slots=1, **settings)
        ready = [started(job, rank, *options) for rank in range(3)] if how == "agent" else job.workers_ready(how)
        folder = job.files("checkpoints")
        launcher = job.sdk(*command(str(folder)))
        eventually(lambda: launcher.stdout.count("trains") == 3 or launcher.ended, what="three ranks train")
        assert not launcher.ended, launcher.story()
        return ready, folder

    return start


def checkpoint(folder):
    """Return the command of a rank that needs two seconds for a checkpoint."""
    return script("checkpoint", folder)


def deaf(_folder):
    """Return the command of a rank that does not end."""
    return "sh", "-c", "trap '' TERM; echo it trains; while :; do sleep 1; done"


@pytest.mark.parametrize("name", ["openmpi-4", "openmpi-5", "mpich-4", "intel"])
def test_ranks_end_in_peace_when_their_worker_is_deleted(training, name):
    """They get SIGTERM, write checkpoints for two seconds, and then all is over; the exit code is that of SIGTERM."""
    workers, folder = training(checkpoint, name=name, searches=True)
    code, seconds = stop(workers[1])
    assert 143 == code, workers[1].story()
    assert 2 <= seconds < 2 + QUICK_S
    assert 1 in saved(folder)
    assert "SIGTERM" == (folder / "1.begin").read_text()
    assert ("SIGTERM", 1) == tuple(workers[1].log("stopping")[key] for key in ("reason", "ranks"))
    assert 1 == workers[1].log("all ranks have ended")["ranks"]
    assert 0 == workers[1].termination_bytes


def test_plain_sshd_kills_the_ranks(training):
    """The contrast: the same, and there is no checkpoint."""
    workers, folder = training(checkpoint, how="plain")
    stop(workers[1])
    assert not (folder / "1.begin").exists()


def test_the_grace_ends(training):
    """A rank that ignores SIGTERM is killed; who sends a second one neither hurries nor delays that."""
    workers, _folder = training(deaf, "--grace", "2")
    begun = workers[1].signal(signal.SIGTERM)
    assert workers[1].outlives(1)
    code, _seconds = stop(workers[1])
    assert 143 == code
    assert 2 <= time.monotonic() - begun < 2 + QUICK_S
    assert 1 == workers[1].log("the grace is over, killing")["ranks"]
    assert ["stopping"] == [line["event"] for line in workers[1].logs if line["event"] == "stopping"]


def test_without_ranks_it_ends_at_once(mpi):
    """Sessions have nothing to save."""
    job = mpi()
    container = started(job)
    ssh(job, "sleep", "1000")
    eventually(lambda: "Accepted publickey" in container.stderr, what="the session begins")
    code, seconds = stop(container)
    assert 143 == code
    assert seconds < QUICK_S
    assert 0 == container.log("stopping")["ranks"]
    assert 0 == container.termination_bytes


def test_nothing_is_left(mpi):
    """Also where the worker is not PID 1, whose end kills all: what ignores SIGTERM, and what left its session."""
    job = mpi()
    words = '"$@"; echo "ended with $?"; exec sleep 600'
    container = job.run(job.workers[0], "sh", "-c", words, "sh", *WORKER)
    eventually(lambda: '"ready"' in container.stderr, what="the worker is ready")
    stubborn = "trap '' TERM HUP; setsid sh -c 'sleep 1001 & sleep 1000' & echo begun; sleep 1000"
    session = ssh(job, stubborn)
    session.printed("begun")
    assert len(container.processes()) >= 6
    os.kill(children(container.pid)[0], signal.SIGTERM)
    container.printed("ended with 143")
    eventually(lambda: len(container.processes()) == 1, what="only the shell is left")
    assert ["sleep", "600"] == container.processes()[0].cmdline()


def test_an_sshd_that_is_killed(training):
    """The pod is to be started anew; ranks have their time all the same."""
    workers, folder = training(checkpoint)
    sshd = next(child for child in children(workers[1].pid) if "sshd_config" in " ".join(command_line(child)))
    os.kill(sshd, signal.SIGKILL)
    assert 20 == workers[1].wait(), workers[1].story()
    assert 1 in saved(folder)
    told = workers[1].termination
    assert (20, "mpi-sshd-ended") == (told["exit_code"], told["code"])
    assert told["reason"].startswith("sshd killed by SIGKILL; its last words: ")


def command_line(pid):
    """Return the words of a process's command, none when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@pytest.mark.parametrize(
    "prefix,uid,code,said",
    [
        (("--bounding-set=-sys_chroot",), 0, "mpi-capability-missing", "this container lacks SYS_CHROOT"),
        (("--reuid=54321", "--regid=54321", "--clear-groups"), 0, "mpi-user-unknown", "uid 54321 has no entry"),
        (("--reuid=1", "--regid=1", "--clear-groups"), 0, "mpi-user-without-shell", "/usr/sbin/nologin"),
    ],
    ids=["capability", "uid", "shell"],
)
def test_where_sshd_could_only_drop_sessions(mpi, prefix, uid, code, said):
    """It says so before it begins, and what to do; by itself sshd would listen, and the launcher be at a loss."""
    job = mpi(uid=uid)
    container = job.run(job.workers[0], "setpriv", *prefix, *WORKER)
    (container.directory / "kubelet-file").chmod(0o666)
    assert 30 == container.wait(), container.story()
    assert code == container.logs[-1]["code"]
    assert said in container.logs[-1]["event"]


def test_a_port_that_an_ordinary_user_may_not_have(mpi):
    """What sshd would say in three lines, one of which is about IPv6."""
    job = mpi(uid=USER_ID)
    container = job.run(job.workers[0], *WORKER, "--port", "22")
    assert 30 == container.wait(), container.story()
    assert "mpi-port-refused" == container.termination["code"]
    assert f"uid {USER_ID} may not listen on port 22" == container.termination["reason"]


def test_a_port_that_is_taken(mpi):
    """As by another pod of the same job with hostNetwork."""
    job = mpi()
    started(job)
    container = job.run(job.workers[0], *WORKER)
    assert 20 == container.wait(), container.story()
    assert "mpi-port-taken" == container.termination["code"]


@pytest.mark.parametrize("seconds", [0.01, 0.3, 0.6])
def test_sigterm_while_it_starts(mpi, seconds):
    """Whatever it does at that moment, from when a PID 1 can hear of it."""
    job = mpi()
    container = job.run(job.workers[0], *WORKER)
    eventually(lambda: catches(container.pid, signal.SIGTERM), what="it hears of SIGTERM")
    assert container.outlives(seconds)
    code, took = stop(container)
    assert 143 == code
    assert took < QUICK_S
