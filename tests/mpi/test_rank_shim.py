"""Real ranks: how each ends, what reaches its program, and what its world hears of it."""

import os
import resource
import shlex
import signal
import socket
import time

import pytest
from mpi_ranks import (
    GRACEFUL,
    HOST,
    SIGNALS,
    STAY,
    STUBBORN,
    alive,
    dies,
    elsewhere,
    finished,
    lost,
    start_shim,
    wanted,
)
from podlab import PATIENCE_S, eventually
from structlog.testing import capture_logs

from trainer_agent.mpi.world import Loss

pytestmark = pytest.mark.lab


@pytest.mark.parametrize(
    "program, code, lost_code",
    [("exit 42", 42, 42), ("kill -KILL $$", -9, -9), ("kill -TERM $$", -15, -15), ("kill -SEGV $$", -11, -11)],
)
def test_how_a_rank_ends(play, program, code, lost_code):
    """mpirun sees the program's own end, and so does the world, by the host's name in the hostfile."""
    job = play(1, expected=wanted(1, host=f"{HOST}.job"))
    assert code == finished(job.rank(0, 1, "sh", "-c", program))[0]
    assert Loss(0, f"{HOST}.job", lost_code) == lost(job)
    assert not job.world.ended_well


def test_a_core_is_the_programs_own(play, tmp_path):
    """What ends as the program has ended leaves no core beside the program's."""
    job = play(1)
    rank = job.rank(0, 1, "sh", "-c", "echo; read x; cd /; kill -SEGV $$", cwd=tmp_path)
    rank.stdout.readline()
    resource.prlimit(rank.pid, resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
    rank.communicate("\n", timeout=PATIENCE_S)
    assert -11 == rank.returncode
    assert [] == list(tmp_path.iterdir())


def test_the_first_that_fails_is_told(play):
    """The others are asked to end after a moment, as not every mpirun does that, and count no more."""
    job = play(2)
    failing, saving = job.rank(0, 2, "sh", "-c", "read x; exit 3"), job.rank(1, 2, *GRACEFUL)
    assert "ready\n" == saving.stdout.readline()
    failing.stdin.write("\n")
    failing.stdin.flush()
    assert (7, "saved\n", "") == finished(saving)
    assert Loss(0, HOST, 3) == job.world.loss


def test_a_rank_that_vanishes(play):
    """Its host is gone, or nobody there can speak any more."""
    job = play(1)
    link = job.hello(0, 1)
    assert b"go\n" == link.recv(16)
    link.close()
    assert Loss(0, HOST, None) == lost(job)


def test_a_shim_that_is_killed(play):
    """Its program and what that started end with it; it is no loss of a host, as somebody there still says so."""
    job = play(1)
    rank = job.rank(0, 1, "sh", "-c", "sleep 60 & echo $$ $!; wait")
    program, grandchild = map(int, rank.stdout.readline().split())
    rank.kill()
    assert dies(program)
    assert dies(grandchild)
    eventually(lambda: job.world.ranks[0].ended == -9, what="it is told")
    job.world.close()
    assert (None, False) == (job.world.loss, job.world.ended_well)


def test_what_a_program_leaves_in_its_group_ends_with_it(play):
    """So nothing of it keeps mpirun waiting, or a GPU."""
    job = play(1)
    code, out, _ = finished(job.rank(0, 1, "sh", "-c", "sleep 60 & echo $!; exit 5"))
    assert 5 == code
    assert dies(int(out))


def test_a_daemon_may_stay(play):
    """Who leaves the group on purpose is not followed."""
    job = play(1)
    code, out, _ = finished(job.rank(0, 1, "sh", "-c", "setsid sleep 60 >&- 2>&- & echo $!; exec sleep 0.2"))
    daemon = int(out)
    assert (0, True) == (code, alive(daemon))
    os.kill(daemon, signal.SIGKILL)


def test_a_program_that_cannot_be_started(play):
    """The code is that of shells, the message names program and host."""
    job = play(1)
    message = f"cannot start 'no-such-program' on {HOST}: No such file or directory\n"
    assert (127, "", message) == finished(job.rank(0, 1, "no-such-program"))
    assert Loss(0, HOST, 127) == lost(job)


def test_the_programs_files_are_mpiruns(play):
    """Standard input reaches the program; what it writes comes in its order."""
    job = play(1)
    rank = job.rank(0, 1, "sh", "-c", "for n in 1 2 3; do read x; echo out $n $x; echo err $n >&2; done")
    out, err = rank.communicate("a\nb\nc\n", timeout=PATIENCE_S)
    assert ("out 1 a\nout 2 b\nout 3 c\n", "err 1\nerr 2\nerr 3\n") == (out, err)


def test_the_program_sees_no_token(play):
    """What the ranks prove themselves with is not the program's business."""
    job = play(1)
    _, out, _ = finished(job.rank(0, 1, "env"))
    assert "OMPI_COMM_WORLD_RANK=0" in out.splitlines()
    assert job.world.token not in out


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_to_the_group_comes_once(play, signum):
    """mpirun shoots into the group of a rank; a program that is shot twice would stop writing its checkpoint."""
    job = play(1)
    name = signum.name.removeprefix("SIG")
    count = f"trap : TERM; trap 'n=$((n+1))' {name}; echo ready; sleep 0.1; sleep 0.1; sleep 0.1; exit $((10+n))"
    rank = job.rank(0, 1, "bash", "-c", count)
    assert "ready\n" == rank.stdout.readline()
    os.killpg(rank.pid, signum)
    assert 11 == finished(rank)[0]


@pytest.mark.parametrize("signum, warned", [(signal.SIGTERM, 1), (signal.SIGUSR1, 0), (signal.SIGCONT, 0)])
def test_who_is_told_to_end_elsewhere(play, signum, warned):
    """A warning names the host whose ranks somebody there ends, and all others end with them."""
    job = play(1)
    with capture_logs() as logs:
        rank = job.rank(0, 1, "bash", "-c", "trap 'exit 0' TERM; trap : USR1 CONT; echo ready; sleep 0.1; sleep 0.1")
        assert "ready\n" == rank.stdout.readline()
        elsewhere(rank, signum)
        assert 0 == finished(rank)[0]
        job.world.close()
    told = [(line["host"], line["signal"]) for line in logs if line["log_level"] == "warning"]
    assert ([(HOST, signum.name)] * warned, HOST * warned) == (told, job.world.deleted)


@pytest.mark.parametrize("code", [0, 7])
def test_what_mpirun_itself_ends(play, code):
    """Its daemon, the parent of a rank, tells the rank to end: no pod is deleted, and no host has lost the rank."""
    job = play(2)
    ranks = job.ranks(2, "sh", "-c", f"trap 'exit {code}' TERM; {STAY}")
    assert ["ready\n"] * 2 == [rank.stdout.readline() for rank in ranks]
    with capture_logs() as logs:
        ranks[0].terminate()
        assert [code, code] == [finished(rank)[0] for rank in ranks]  # the other one, too, if its daemon is gone
        job.world.close()
    assert ("", None, []) == (job.world.deleted, job.world.loss, logs)


def test_the_rank_for_which_mpirun_ends_the_others(play):
    """It counts, though the others may be heard first: its words have another way than mpirun's."""
    job = play(2)
    failing, other = job.hello(0, 2), job.rank(1, 2, *GRACEFUL)
    assert "ready\n" == other.stdout.readline()
    other.terminate()
    assert (7, "saved\n", "") == finished(other)
    eventually(lambda: job.world.ranks[1].ended == 7, what="it has ended")
    failing.sendall(b'{"ended": 42}\n')
    assert Loss(0, HOST, 42) == lost(job)


def test_a_rank_whose_daemon_is_killed_is_told_to_end(play):
    """Nobody could end it any more, and hydra's mpirun would wait for it for ever; it is no pod that is deleted."""
    job = play(1)
    rank = job.rank(0, 1, *GRACEFUL, below=("sh", "-c", '"$@"; exit', "orted"))
    assert "ready\n" == rank.stdout.readline()
    rank.kill()
    assert "saved\n" == rank.stdout.read()
    eventually(lambda: job.world.ranks[0].ended == 7, what="it has ended")
    assert ("", None) == (job.world.deleted, job.world.loss)


def test_what_mpirun_leaves_behind_is_told_to_end(play):
    """As when a daemon was killed: its ranks live, and mpirun has ended without them."""
    job = play(1)
    rank = job.rank(0, 1, *GRACEFUL)
    assert "ready\n" == rank.stdout.readline()
    job.world.close()
    assert (7, "saved\n", "") == finished(rank)


def in_bash(program):
    """Return a rank that is a script of bash, which hands no signal on, and this a command in it."""
    return ("bash", "-c", f"{shlex.join(program)}; echo after")


@pytest.mark.parametrize("by_launcher", [True, False])
def test_a_script_of_a_shell_has_time_for_its_checkpoint(play, by_launcher):
    """The shell ends at once, and its group only when what it waited for has saved; mpirun sees the shell's end."""
    job = play(1)
    save = f"trap 'sleep 0.3; echo saved; exit 0' TERM; {STAY}"
    rank = job.rank(0, 1, *in_bash(("sh", "-c", save)))
    assert "ready\n" == rank.stdout.readline()
    job.world.stop(signal.SIGTERM) if by_launcher else elsewhere(rank, signal.SIGTERM)
    assert (-signal.SIGTERM, "saved\n", "") == finished(rank)


@pytest.mark.parametrize(
    "script, code, said",
    [
        ("trap 'echo bye' EXIT; {}; exit", -15, "bye\nsaved\n"),
        ("trap 'echo bye' EXIT; {} & wait", -15, "bye\nsaved\n"),
        ("trap 'echo bye; exit 9' TERM; {}; exit", 9, "saved\nbye\n"),
        ("trap 'kill $!; wait $!; exit 9' TERM; {} & wait", 9, "saved\n"),
    ],
)
@pytest.mark.parametrize("by_launcher", [True, False])
def test_a_script_with_a_trap_has_time_for_its_checkpoint(play, script, code, said, by_launcher):
    """bash ends at once for a trap of EXIT alone, and runs another when its command has ended."""
    job = play(1)
    save = f"trap 'sleep 0.3; echo saved; exit 0' TERM; {STAY}"
    rank = job.rank(0, 1, "bash", "-c", script.format(shlex.join(["sh", "-c", save])))
    assert "ready\n" == rank.stdout.readline()
    job.world.stop(signal.SIGTERM) if by_launcher else elsewhere(rank, signal.SIGTERM)
    assert (code, said) == finished(rank)[:2]


POWERLESS = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")
ANOTHER_USER = ("setpriv", "--reuid", "4242", "--clear-groups")
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of another user")


@root
def test_a_process_of_another_user_below_a_shell(play):
    """What sudo has started cannot be told; the shell's other commands are, and orders are heard after that."""
    job = play(1, grace_s=4)
    other = shlex.join([*ANOTHER_USER, "sh", "-c", "echo other; exec sleep 30 >&- 2>&-"])
    rank = job.rank(0, 1, "bash", "-c", f"{other} & {shlex.join(GRACEFUL)}; exit", below=POWERLESS)
    assert {"ready\n", "other\n"} == {rank.stdout.readline(), rank.stdout.readline()}
    began = time.monotonic()
    job.world.stop(signal.SIGTERM)
    assert "saved\n" == rank.stdout.readline()
    assert -signal.SIGTERM == rank.wait(timeout=PATIENCE_S)
    assert 1.5 < time.monotonic() - began < 20


@root
def test_a_program_of_another_user(play):
    """Its group is not ours to end, and how it has ended is told all the same."""
    job = play(1)
    rank = job.rank(0, 1, *ANOTHER_USER, "sh", "-c", "echo; read x; exit 3", below=POWERLESS)
    rank.stdout.readline()
    assert (3, "", "") == finished(rank, "\n")


def test_another_signal_reaches_what_a_shell_waits_for(play):
    """USR1 in place of SIGTERM would end the shell alone."""
    job = play(1, first=signal.SIGUSR1)
    save = f"trap 'echo saved; exit 0' USR1; {STAY}"
    rank = job.rank(0, 1, *in_bash(("sh", "-c", save)))
    assert "ready\n" == rank.stdout.readline()
    job.world.stop(signal.SIGTERM)
    assert (-signal.SIGUSR1, "saved\n", "") == finished(rank)


def test_what_a_shell_leaves_ends_with_the_grace(play):
    """What does not end, although the shell has, is killed as a rank is."""
    job = play(1, grace_s=2.3)
    rank = job.rank(0, 1, *in_bash(STUBBORN))
    assert "ready\n" == rank.stdout.readline()
    began = time.monotonic()
    job.world.stop(signal.SIGTERM)
    assert -signal.SIGTERM == finished(rank)[0]
    assert 0.3 <= time.monotonic() - began < 2.3


@pytest.mark.parametrize("prefix", ["PMI", "PMIX"])
def test_the_variables_of_other_implementations(play, prefix):
    """hydra has PMI_RANK and PMI_SIZE."""
    job = play(1)
    own = {f"{prefix}_RANK": "0", "PMI_SIZE": "1", "OMPI_COMM_WORLD_RANK": "", "OMPI_COMM_WORLD_SIZE": ""}
    assert 0 == finished(job.rank("", "", "true", **own))[0]


def test_a_launcher_that_cannot_be_reached():
    """The rank says who could not reach whom; without the variable it says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    message = f"{HOST} cannot reach the launcher at 127.0.0.1 port {port}: [Errno 111] Connection refused\n"
    assert (1, "", message) == finished(start_shim("true", TRAINER_AGENT_RANKS=f"127.0.0.1 {port} x"))
    message = f"TRAINER_AGENT_RANKS is not set on {HOST}: mpirun did not hand it on; use --no-verify\n"
    assert (1, "", message) == finished(start_shim("true"))
