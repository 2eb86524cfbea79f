"""What the end of a job means, whatever mpirun makes of it."""

import os
from dataclasses import replace

import pytest
from mpi_sshd import make_key

from trainer_agent.errors import Finding
from trainer_agent.hostfile import Entry, Hostfile
from trainer_agent.launchers.autopsy import Autopsy
from trainer_agent.launchers.supervise import Ended
from trainer_agent.mpi import words
from trainer_agent.mpi.census import Arrival, Expected
from trainer_agent.mpi.implementation import Implementation
from trainer_agent.mpi.outcome import KEY_HINT, LATE_HINT, NOT_STARTED_HINT, POD_HINT, outcome
from trainer_agent.mpi.plan import Plan
from trainer_agent.mpi.ssh import arguments
from trainer_agent.mpi.world import Loss, Member, World

HOSTS = Hostfile((Entry("n-0.job", 1), Entry("n-1.job", 1)))
ADDRESSES = {"n-0.job": "127.0.0.1", "n-1.job": "127.0.0.2"}
ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
PLAN = Plan(Implementation("openmpi", "5.0.11"), HOSTS, words.plain(("app",)), (), "python3", ENVIRON)
with_ssh = pytest.mark.usefixtures("ssh")


@pytest.fixture
def world():
    """A world that heard what the test says."""
    found = World(Expected({"n-0.job": 1, "n-1.job": 1}, ADDRESSES, 2), start_s=30, grace_s=1)
    yield found
    found.close()


def come(world, *names):
    """Let one rank of each of these hosts have come."""
    for rank, name in enumerate(names):
        world.census.add(Arrival(rank, 2, name, ""))


def heard(world, *codes):
    """Let all have begun, one rank on each host, and have ended with these codes; None for one that still runs."""
    come(world, "n-0", "n-1")
    world.began = True
    world.ranks = {rank: Member(None, "", ended=code) for rank, code in enumerate(codes)}


def meaning(world, code=0, *, signum=0, killed=False, said=b"", **settings):
    autopsy = Autopsy(elastic_agent=False)
    autopsy.feed(said)
    ended = Ended(code, signum, killed=killed, reaped=0, elapsed_s=1.0)
    return outcome(PLAN, ended, autopsy, world, **settings)


@pytest.mark.parametrize("began", [True, None])
def test_success(world, began):
    """With a world or without one."""
    heard(world, 0, 0)
    assert {"exit_code": 0, "reason": "finished"} == meaning(world if began else None)


def test_an_mpirun_that_had_to_be_ended(world):
    """All ranks had ended well before."""
    world.began = world.hung = True
    assert {"exit_code": 0, "reason": "finished"} == meaning(world, 143)


def test_a_worker_that_was_deleted(world):
    """Its ranks were told to end by their own pod; that they and others then fail is no news."""
    world.began, world.loss, world.deleted = True, Loss(0, "n-0.job", 1), "n-1.job"
    reason = "stopped: the ranks on n-1.job were told to end there, as when a pod is deleted"
    assert {"exit_code": 143, "reason": reason, "host": "n-1.job"} == meaning(world, 1)


@pytest.mark.parametrize("killed, more", [(False, ""), (True, " and was killed after the grace")])
def test_stopped(world, killed, more):
    """A signal to us is the reason, whatever the ranks did then: hydra ends with 0."""
    world.began, world.loss = True, Loss(0, "n-0.job", -15)
    expected = {"exit_code": 143, "reason": f"stopped by SIGTERM{more}"}
    assert expected == meaning(world, 0, signum=15, killed=killed)


@pytest.mark.parametrize(
    "code, exit_code, how",
    [
        (42, 42, "exited with code 42"),
        (127, 127, "exited with code 127"),
        (-9, 137, "was killed by SIGKILL"),
        (-11, 139, "was killed by SIGSEGV"),
        (None, 137, "is gone without a word: its pod or its node has ended"),
    ],
)
@pytest.mark.parametrize("mpirun", [0, 9, 255])
def test_a_rank_that_failed(world, code, exit_code, how, mpirun):
    """Its own code, where mpirun says 0, 9 or 255; who and where; and the last words."""
    world.began, world.loss = True, Loss(3, "n-1.job", code)
    about = {"rank": 3, "host": "n-1.job", "error": "boom"}
    assert {"exit_code": exit_code, "reason": f"rank 3 {how} on n-1.job", **about} == meaning(
        world, mpirun, said=b"boom\n"
    )


def test_a_world_that_was_wrong(world):
    """The finding is told, with the code for stop."""
    world.problem = Finding("mpi-hosts-unused", "all on one", hint="look")
    expected = {"exit_code": 30, "code": "mpi-hosts-unused", "reason": "all on one", "hint": "look"}
    assert expected == meaning(world, 143)


@pytest.mark.parametrize("ranks, after", [([0], ", after all ranks had ended with 0"), ([None], "")])
def test_mpirun_itself_fails(world, ranks, after):
    """No rank is to blame."""
    world.began = True
    world.ranks = {number: Member(None, "", ended=code) for number, code in enumerate(ranks)}
    expected = {"exit_code": 213, "reason": f"mpirun ended with code 213{after}", "error": "PMIx failed"}
    assert expected == meaning(world, 213, said=b"PMIx failed\n")


def test_an_mpirun_that_ends_with_0_although_its_ranks_did_not(world):
    """Open MPI 5's does when a daemon was killed; that is no success."""
    heard(world, 0, None)
    reason = "mpirun ended with code 0 although these ranks did not: 1 on n-1.job"
    expected = {"exit_code": 1, "reason": reason, "error": "lost communication with a remote daemon"}
    assert expected == meaning(world, said=b"lost communication with a remote daemon\n")


@pytest.mark.parametrize("code", [0, 1, 213])
def test_mpirun_that_starts_nothing(world, code):
    """Its own words are told; an mpirun that ends with 0 and has started nobody is no success."""
    reason = f"mpirun ended with code {code}; ranks that came: none"
    expected = {"exit_code": 30, "code": "mpi-not-started", "reason": reason, "hint": NOT_STARTED_HINT}
    assert {**expected, "error": "no such app"} == meaning(world, code, said=b"no such app\n")


def test_ranks_that_never_came_and_nobody_to_ask(world):
    """The hosts without ranks are named."""
    world.late = True
    come(world, "n-0")
    reason = "not all ranks came within 30 s; ranks that came: 1 on n-0.job, 0 on n-1.job; missing: n-1.job"
    expected = {"exit_code": 20, "code": "mpi-hosts-missing", "reason": reason, "hint": LATE_HINT, "error": ""}
    assert expected == meaning(world, 143)


def test_ranks_that_never_came_where_the_user_placed_them(world):
    """Nobody knows who is missing, and no name is invented."""
    world.census.wanted = Expected({}, ADDRESSES, None)
    world.late = True
    come(world, "n-0")
    reason = "not all ranks came within 30 s; ranks that came: 1 on n-0.job, 0 on n-1.job"
    assert reason == meaning(world, 143, remote=ADDRESSES)["reason"]


def test_a_pod_that_is_deleted(world):
    """Its ranks were told to end there; the job is over as if it had been told itself."""
    world.began, world.deleted, world.loss = True, "n-1.job", Loss(1, "n-1.job", -15)
    reason = "stopped: the ranks on n-1.job were told to end there, as when a pod is deleted"
    assert {"exit_code": 143, "reason": reason, "host": "n-1.job"} == meaning(world, 255)


def test_no_ssh_to_ask_with(world):
    """That is told instead."""
    bare = replace(PLAN, environ={"PATH": "/nowhere"})
    ended = Ended(1, 0, killed=False, reaped=0, elapsed_s=1.0)
    found = outcome(bare, ended, Autopsy(elastic_agent=False), world, remote=ADDRESSES)
    why = "cannot start ssh: No such file or directory"
    assert f"mpirun ended with code 1; ranks that came: none; n-0.job: {why}, n-1.job: {why}" == found["reason"]


@with_ssh
def test_hosts_that_are_gone(world, servers):
    """Only those without ranks are asked, and what ssh says of each is told."""
    come(world, "n-0")
    arguments_ = arguments(("-F", "none"), port=servers.port, key=None, known_hosts=None)
    found = meaning(world, 255, remote=ADDRESSES, ssh_args=arguments_)
    why = f"ssh: connect to host 127.0.0.2 port {servers.port}: Connection refused"
    reason = f"mpirun ended with code 255; ranks that came: 1 on n-0.job, 0 on n-1.job; n-1.job: {why}"
    assert (20, "mpi-hosts-missing", POD_HINT, reason) == tuple(
        found[name] for name in ("exit_code", "code", "hint", "reason")
    )


@pytest.mark.lab
@pytest.mark.parametrize("right", [True, False])
def test_keys_that_do_not_fit(world, servers, key, tmp_path, right):
    """A refused key is the job's own fault; where ssh works, mpirun's words are to be read."""
    address = servers.start(key, authorized=key.with_name("id_rsa.pub"))
    own = key if right else make_key(tmp_path / "other")
    ssh_args = arguments(("-F", "none"), port=servers.port, key=own, known_hosts=None)
    found = meaning(world, 255, remote={"n-0.job": address}, ssh_args=ssh_args)
    assert (30, "mpi-not-started" if right else "mpi-ssh-refused") == (found["exit_code"], found["code"])
    assert right or (KEY_HINT, True) == (found["hint"], "n-0.job: " in found["reason"])
    assert right or "Permission denied" in found["reason"]
