"""The check `mpi` in the launcher of a real MPI job: everything well, and each thing that it must find."""

from __future__ import annotations

import json
import os

import pytest
from mpilab import MpiJob, make_key
from nvml_machines import h100_sxm
from nvml_standin import Standin
from podlab import AGENT

pytestmark = pytest.mark.lab

HOSTS = ["job1-node-0-0.job1", "job1-node-0-1.job1", "job1-node-0-2.job1"]
# What a firewall between pods leaves: ssh, and answers to what the pod itself begins.
ONLY_SSH = """table inet firewall {
  chain input {
    type filter hook input priority 0
    ct state established accept
    tcp dport 2222 accept
    meta l4proto tcp drop
  }
}
"""


@pytest.fixture
def job(lab_of_mpi, implementation):
    """Return what makes a job whose names are published."""

    def make(name, **settings):
        lab = lab_of_mpi(3)
        lab.publish()
        return MpiJob(lab, implementation(name), **settings)

    return make


def preflight(job, *options, within=200):
    """Return exit code, suspects and the row of the check."""
    words = ("preflight", "--checks", "mpi", "--profile", "standard", "--output", "json", *options)
    container = job._launcher(AGENT, *words, env={})
    code = container.wait(within=within)
    report = json.loads(container.stdout)
    return code, [(s["id"], s["node_rank"]) for s in report["suspects"]], report["checks"][0]


def codes(row):
    return [finding["code"] for finding in row["findings"]]


@pytest.mark.parametrize("name", ["openmpi-4", "openmpi-5", "mpich-4", "mpich-5", "intel"])
def test_six_ranks_add_up_on_three_hosts(job, name):
    """Through the real MPI, whose library is found beside mpirun or by the linker."""
    job = job(name)
    job.workers_ready("agent")

    code, suspects, row = preflight(job)

    assert (0, [], []) == (code, suspects, row["findings"])
    assert dict.fromkeys(HOSTS, 2) == row["measurements"]["placed"]
    assert HOSTS == list(row["measurements"]["hosts"])


def test_a_host_with_another_mpi(job, implementation):
    job = job("openmpi-4")
    job.furnish()
    other, own = implementation("mpich-4").bin, job.implementation.bin
    job._in(job.workers[1], "mount", "--bind", str(other), str(own))
    job.workers_ready()

    code, suspects, row = preflight(job)

    assert (30, [], ["mpi-versions-differ"]) == (code, suspects, codes(row))
    wanted = "job1-node-0-1.job1 has mpich 4.0.2; the launcher has openmpi 4.1.4"
    assert wanted == row["findings"][0]["message"]


def test_a_host_that_refuses_the_key(job, tmp_path):
    job = job("mpich-4")
    job.furnish(job.workers[2], key=make_key(tmp_path))
    job.workers_ready()

    code, _, row = preflight(job)

    assert (30, ["mpi-ssh-refused"]) == (code, codes(row))
    assert "job1-node-0-2.job1" in row["findings"][0]["message"]
    assert [HOSTS[2]] == [node["name"] for node in row["findings"][0]["evidence"]["nodes"]]


def test_a_host_without_sshd(job):
    job = job("openmpi-4")
    for pod in job.workers[:2]:
        job.sshd(pod)

    code, _, row = preflight(job, "--rendezvous-timeout", "3")

    assert (20, ["mpi-workers-missing"]) == (code, codes(row))
    assert [HOSTS[2]] == row["findings"][0]["evidence"]["hosts"]


@pytest.mark.usefixtures("lab_of_faults")
def test_the_host_that_nobody_can_compute_with_is_named(job):
    """A firewall lets ssh through, and nothing else."""
    job = job("openmpi-5")
    job.workers_ready()
    job.lab.network(job.workers[1].holder, "nft", "-f", "-", text=ONLY_SSH)

    for _ in range(3):  # two hosts that are well may take more than their ten seconds on a busy machine
        code, suspects, row = preflight(job)
        if codes(row) != ["mpi-all-reduce-failed"]:
            break

    assert (20, ["mpi-host-fault"]) == (code, codes(row))
    assert [(HOSTS[1], 1)] == suspects


@pytest.mark.usefixtures("nvml_standin")  # which says what is missing to compile one
def test_a_host_with_fewer_devices_than_slots(job):
    """What its worker's container sees is what counts, not what a bare session of ssh sees."""
    job = job("openmpi-4")
    standin = Standin(job.lab.directory / "nvml")
    standin.directory.mkdir()
    for number, pod in enumerate(job.workers):
        job.sshd(pod, "agent", env=standin.environ(h100_sxm(1 if number == 2 else 2)))

    code, suspects, row = preflight(job)

    assert (20, [(HOSTS[2], 2)], ["mpi-devices-missing"]) == (code, suspects, codes(row))
    message = "visible devices: job1-node-0-2.job1 has 1 for 2 slots; most hosts have 2"
    assert message == row["findings"][0]["message"]


def test_elsewhere_nobody_is_asked(job):
    job = job("openmpi-4")

    code, _, row = preflight(job, "--scope", "node")

    assert (0, "skip", "other hosts are asked with --scope gang") == (code, row["status"], row["message"])


def test_no_job_of_mpi(tmp_path):
    words = (AGENT, "preflight", "--checks", "mpi", "--profile", "standard", "--output", "json")
    code, row = run_alone(words, {"PATH": os.defpath})

    assert (0, "this is not the launcher of an MPI job") == (code, row["message"])


def test_a_hostfile_that_nobody_can_read(tmp_path):
    words = (AGENT, "preflight", "--checks", "mpi", "--profile", "standard", "--output", "json")
    code, row = run_alone(words, {"PATH": os.defpath, "OMPI_MCA_orte_default_hostfile": str(tmp_path / "none")})

    assert (30, ["mpi-unusable"]) == (code, codes(row))
    assert f"cannot read {tmp_path}/none: No such file or directory" in row["findings"][0]["message"]


def run_alone(words, environ):
    import subprocess

    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, json.loads(done.stdout)["checks"][0]
