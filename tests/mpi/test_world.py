"""The world: real ranks that begin and end together; strangers; and an mpirun that does not do what it should."""

import resource
import signal
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from mpi_ranks import (
    GRACEFUL,
    HOST,
    STAY,
    STUBBORN,
    elsewhere,
    finished,
    here,
    hung_up,
    wanted,
)
from podlab import PATIENCE_S, eventually
from structlog.testing import capture_logs

from trainer_agent.mpi.census import Expected
from trainer_agent.mpi.world import Loss

pytestmark = pytest.mark.lab


def test_all_begin_together(play):
    """The first rank waits for the second one; then both run, and the world knows that they ended well."""
    world = (job := play(2)).world
    first = job.rank(0, 2, "echo", "hello")
    here(world, 1)
    assert (None, False) == (first.poll(), world.began)
    with capture_logs() as logs:
        second = job.rank(1, 2, "echo", "hello")
        assert [(0, "hello\n", "")] * 2 == [finished(first), finished(second)]
        job.world.close()
    told = [(line["event"], line["world_size"], line["placed"]) for line in logs]
    assert [("all ranks are here", 2, f"2 on {HOST}")] == told
    assert (True, None, None) == (world.ended_well, world.loss, world.problem)


def test_an_mpirun_that_stays_when_all_ranks_have_ended(play):
    """It is ended, and they ended well."""
    job = play(1, teardown_s=0.5)
    assert 0 == finished(job.rank(0, 1, "true"))[0]
    assert -signal.SIGTERM == job.mpirun.wait(PATIENCE_S)
    assert (True, True) == (job.world.hung, job.world.ended_well)


def test_the_word_to_end(play):
    """All ranks get the signal at the same time, and mpirun none: it would give them half a second."""
    job = play(2)
    ranks = job.ranks(2, *GRACEFUL)
    assert ["ready\n"] * 2 == [rank.stdout.readline() for rank in ranks]
    assert job.world.stop(signal.SIGTERM)
    assert [(7, "saved\n", "")] * 2 == [finished(rank) for rank in ranks]
    assert job.mpirun.poll() is None


def test_nobody_leaves_before_the_last_one(play):
    """mpirun kills all others as soon as one rank has ended, in the middle of their checkpoints."""
    job = play(2)
    began = time.monotonic()
    quick = job.rank(0, 2, *GRACEFUL)
    slow = job.rank(1, 2, "sh", "-c", f"trap 'read x; echo saved; exit 0' TERM; {STAY}")
    assert ["ready\n"] * 2 == [rank.stdout.readline() for rank in (quick, slow)]
    job.world.stop(signal.SIGTERM)
    assert "saved\n" == quick.stdout.readline()
    eventually(lambda: job.world.ranks[0].ended == 7, what="the quick one has ended")
    quick.send_signal(signal.SIGTERM)  # a late signal meets nobody else
    with pytest.raises(subprocess.TimeoutExpired):
        quick.wait(0.2)
    assert (0, "saved\n", "") == finished(slow, "\n")
    assert 7 == quick.wait(PATIENCE_S)
    assert time.monotonic() - began < 6  # and not only when the grace of 10 s is over


def test_a_rank_that_is_told_elsewhere_to_end_ends_all(play):
    """Its pod is being deleted: the others save as well, and are told once."""
    job = play(2)
    ranks = job.ranks(2, *GRACEFUL)
    assert ["ready\n"] * 2 == [rank.stdout.readline() for rank in ranks]
    elsewhere(ranks[1], signal.SIGTERM)
    assert [(7, "saved\n", "")] * 2 == [finished(rank) for rank in ranks]
    assert HOST == job.world.deleted


def test_the_grace_ends(play):
    """Who does not end is killed before mpirun would be, so that mpirun sees its ranks end."""
    job = play(1, grace_s=2.3)
    rank = job.rank(0, 1, *STUBBORN)
    assert "ready\n" == rank.stdout.readline()
    began = time.monotonic()
    assert job.world.stop(signal.SIGTERM)
    assert -signal.SIGKILL == finished(rank)[0]
    assert 0.3 <= time.monotonic() - began < 2.3


def test_another_signal_first(play):
    """Programs that save at SIGUSR1 get it, and SIGTERM when the grace is nearly over; workers still say SIGTERM."""
    job = play(1, grace_s=8.0, first=signal.SIGUSR1)
    script = f"trap 'echo usr1' USR1; trap 'echo term; exit 3' TERM; {STAY}"
    rank = job.rank(0, 1, "sh", "-c", script)
    assert "ready\n" == rank.stdout.readline()
    began = time.monotonic()
    assert job.world.stop(signal.SIGTERM)
    assert "usr1\n" == rank.stdout.readline()
    assert "term\n" == rank.stdout.readline()
    assert time.monotonic() - began >= 0.9


def test_the_word_to_end_before_all_are_here(play):
    """mpirun has to be told, too; the ranks that wait end, and one that comes late does not begin."""
    job = play(2)
    first = job.rank(0, 2, "echo", "ran")
    here(job.world, 1)
    assert not job.world.stop(signal.SIGTERM)
    assert (143, "", "") == finished(first)
    assert (143, "", "") == finished(job.rank(1, 2, "echo", "ran"))
    assert not job.world.began


def test_a_rank_that_ends_while_it_is_told_to(play):
    """Whoever is first, the program's own end is told and nobody waits."""
    job = play(4)
    ranks = job.ranks(4, "sh", "-c", "read x; exit 0")
    eventually(lambda: job.world.began, what="all are here")
    for rank in ranks:
        rank.stdin.close()
        job.world.stop(signal.SIGTERM)
    codes = {rank.wait(PATIENCE_S) for rank in ranks}
    assert codes <= {0, -15}
    eventually(lambda: all(m.ended is not None for m in job.world.ranks.values()), what="all told")


GARBAGE = [
    b"\n",
    b"\0\xff\xfe\n",
    b"GET / HTTP/1.1\r\nHost: launcher\r\n\r\n",
    b"x" * (4 << 20),
    b"[" * 4000 + b"\n",
    b"[]\n",
    b"null\n",
    b'"token"\n',
    b"{}\n",
    b'{"token": "\\ud800", "rank": 0, "size": 1, "host": "x"}\n',
    b'{"token": null, "rank": 0, "size": 1, "host": "x"}\n',
    b'{"token": "0123456789abcdef0123456789abcdef", "rank": 0, "size": 1, "host": "x"}\n',
]


@pytest.mark.parametrize("said", GARBAGE, ids=lambda said: repr(said[:24]))
def test_strangers_are_hung_up_on(play, said):
    """Whoever does not speak as our ranks do, with our token, counts for nothing."""
    job = play(1)
    assert hung_up(job.connect(said))
    assert {} == job.world.census.come
    assert (0, "ran\n", "") == finished(job.rank(0, 1, "echo", "ran"))


def test_strangers_who_break_off(play):
    """A reset connection is the end of a stranger like any other."""
    job = play(1)
    link = job.connect(b"{")
    eventually(lambda: job.world.members, what="it is here")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()
    eventually(lambda: not job.world.members, what="it is gone")
    assert (0, "ran\n", "") == finished(job.rank(0, 1, "echo", "ran"))


@pytest.mark.parametrize(
    "facts", [{"rank": "x"}, {"size": None}, {"rank": 1e999}, {"rank": "9" * 5000}, {"host": {"a": 1}, "rank": []}]
)
def test_a_rank_that_says_nonsense(play, facts):
    """One who has the token and says no number is hung up on as well, and nothing breaks."""
    job = play(1)
    assert hung_up(job.hello(**{"rank": 0, "size": 1, **facts}))
    assert (0, "ran\n", "") == finished(job.rank(0, 1, "echo", "ran"))


def test_strangers_who_say_nothing_delay_nobody(play):
    """Silence costs a socket; words that come in pieces are put together."""
    job = play(1)
    for _ in range(50):
        job.connect()
    job.connect(b'{"token"')
    assert (0, "ran\n", "") == finished(job.rank(0, 1, "echo", "ran"))


@pytest.mark.parametrize("settings", [{}, {"mpirun": STUBBORN}])
def test_ranks_that_never_come(play, settings):
    """After the time for that mpirun is ended, by force if need be, and so are the ranks that wait."""
    job = play(2, start_s=0.3, **settings)
    rank = job.rank(0, 2, "echo", "ran")
    assert (143, "", "") == finished(rank)
    assert (-15 if not settings else -9) == job.mpirun.wait(PATIENCE_S)
    assert (True, False, None) == (job.world.late, job.world.began, job.world.loss)


def test_a_rank_that_comes_too_late(play):
    """Once the job has been given up, it does not begin after all."""
    job = play(1, start_s=0.1)
    eventually(lambda: job.world.late, what="it is late")
    assert (143, "", "") == finished(job.rank(0, 1, "echo", "ran"))
    assert (False, None) == (job.world.began, job.world.problem)


@pytest.mark.parametrize("rank, size", [(0, 1), (0, 3)])
def test_a_world_of_the_wrong_size(play, rank, size):
    """Ranks that each believe to be alone, and ranks too many, end before the program begins."""
    job = play(2)
    ranks = [job.rank(number if size > 1 else 0, size, "echo", "ran") for number in range(size)]
    assert {(143, "", "")} == {finished(each) for each in ranks}
    assert -15 == job.mpirun.wait(PATIENCE_S)
    assert ("mpi-hosts-unused" if size == 1 else "mpi-world-wrong") == job.world.problem.code


def test_two_ranks_of_one_number(play):
    """That is two worlds or none; the ranks that wait are ended."""
    job = play(2)
    ranks = [job.rank(0, 2, "echo", "ran") for _ in range(2)]
    assert {(143, "", "")} == {finished(each) for each in ranks}
    assert f"rank 0 came twice, from {HOST} and {HOST}" == job.world.problem.message


def test_a_rank_that_comes_after_the_beginning(play):
    """It is turned away, and its end is nobody's loss."""
    job = play(1)
    first = job.rank(0, 1, "sh", "-c", "read x")
    eventually(lambda: job.world.began, what="all are here")
    assert (1, "", "") == finished(job.rank(0, 1, "echo", "ran"))
    assert hung_up(job.hello(-1, -1))
    first.communicate("\n", timeout=PATIENCE_S)
    job.world.close()
    assert (None, True) == (job.world.loss, job.world.ended_well)


def test_a_rank_that_is_gone_before_the_beginning(play):
    """Without it the others do not begin: they would wait for it in MPI_Init for ever."""
    job = play(2, start_s=1.0)
    gone = job.rank(0, 2, "echo", "ran")
    here(job.world, 1)
    gone.kill()
    gone.wait()
    eventually(lambda: job.world.census.gone, what="it is missed")
    assert (143, "", "") == finished(job.rank(1, 2, "echo", "ran"))
    assert (True, False) == (job.world.late, job.world.began)


def test_processes_without_a_rank(play):
    """An mpirun that gives them no number is none of theirs."""
    job = play(1)
    rank = job.rank("", "", "echo", "ran")
    assert (143, "", "") == finished(rank)
    assert "mpi-ranks-strange" == job.world.problem.code


def test_an_mpirun_that_ends_while_ranks_wait(play):
    """They are told to end, too, when the launcher hears no more."""
    job = play(2)
    rank = job.rank(0, 2, "echo", "ran")
    here(job.world, 1)
    job.mpirun.kill()
    job.world.close()
    assert (143, "", "") == finished(rank)


def test_what_was_said_before_mpirun_ended_counts(play):
    """The last words of a rank may still be in the socket when mpirun is gone."""
    job = play(1)
    link = job.hello(0, 1)
    assert b"go\n" == link.recv(16)
    link.sendall(b'{"ended": 42}\n')
    link.close()
    job.world.close()
    assert Loss(0, HOST, 42) == job.world.loss


def test_closing_does_not_wait_for_strangers(play):
    """Somebody who connects for ever holds nobody up."""
    job = play(1)
    over = threading.Event()

    def flood():
        while not over.is_set():
            with socket.socket() as link:
                link.settimeout(0.5)
                with suppress(OSError):  # refused or hung up on
                    link.connect(("127.0.0.1", job.world.port))
                    link.sendall(b"x\n")

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    job.world.close()
    over.set()
    assert time.monotonic() - began < 30
    for thread in threads:
        thread.join(PATIENCE_S)


def test_a_world_that_never_started(play):
    """When mpirun could not be started there is nothing to hear, and nothing stays open."""
    job = play(1)
    job.world.close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    world = type(job.world)(wanted(1), start_s=1, grace_s=1)
    assert not world.stop(signal.SIGTERM)
    world.close()
    assert not world.stop(signal.SIGTERM)
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_stays_open(play):
    """However many came and went."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    job = play(8)
    for rank in range(8):
        job.hello(rank, 8)
    eventually(lambda: job.world.began, what="all are here")
    job.end()
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_more_ranks_than_files(play):
    """The soft limit of open files is 1024 on many machines, and each rank needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    job = play(200)
    assert hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for rank in range(200):
        job.hello(rank, 200)
    eventually(lambda: job.world.began, what="all are here")


def test_ipv6(play):
    """Ranks may come by IPv6, and are known by that address."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
    job = play(1, expected=Expected({"node.job": 1}, {"node.job": "::1"}, 1))
    assert 0 == finished(job.rank(0, 1, "true", address="::1"))[0]
    assert {"node.job": 1} == job.world.census.count()
