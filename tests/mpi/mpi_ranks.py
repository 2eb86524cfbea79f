"""Real ranks without an MPI: the shim as mpirun would start it, and a world whose mpirun is a harmless process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from podlab import PATIENCE_S, eventually

from trainer_agent.mpi.census import Expected
from trainer_agent.mpi.plan import rank_program
from trainer_agent.mpi.world import World

SHIM = rank_program()
HOST = socket.gethostname()


def wanted(ranks, *, host=HOST):
    """Return what a world with all ranks on this machine looks like."""
    return Expected({host: ranks}, {host: "127.0.0.1"}, ranks)


class Play:
    """
    A world, something harmless for its mpirun, and the ranks that a test starts.

    Args:
        mpirun: the harmless command.
    """

    def __init__(
        self, expected, *, start_s=30.0, grace_s=10.0, teardown_s=60.0, first=signal.SIGTERM, mpirun=("sleep", "60")
    ):
        self.world = World(expected, start_s=start_s, grace_s=grace_s, teardown_s=teardown_s, first=first)
        self.mpirun = subprocess.Popen(mpirun, stdout=subprocess.PIPE)
        if mpirun[0] != "sleep":
            self.mpirun.stdout.readline()  # it says when it is ready
        self.world.start(self.mpirun.pid)
        self.processes = [self.mpirun]
        self.links = []

    def rank(self, rank, size, *argv, address="127.0.0.1", cwd=None, below=(), **environ):
        """Start a rank in a group of its own, as every mpirun does; `below` starts it as a child of that command."""
        own = {"TRAINER_AGENT_RANKS": self.world.variable(address)}
        place = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size)}
        environ = {"PATH": os.environ["PATH"], **own, **place, **environ}
        process = start_shim(*argv, cwd=cwd, below=below, **environ)
        self.processes.append(process)
        return process

    def ranks(self, size, *argv):
        """Start all ranks."""
        return [self.rank(rank, size, *argv) for rank in range(size)]

    def connect(self, data=b""):
        """Come as a stranger and say something."""
        link = socket.create_connection(("127.0.0.1", self.world.port), 10)
        self.links.append(link)
        with suppress(OSError):  # hung up in the middle of it
            link.sendall(data)
        return link

    def hello(self, rank, size, **facts):
        """Come as a rank that is no process."""
        said = {"token": self.world.token, "rank": rank, "size": size, "host": HOST, **facts}
        return self.connect(json.dumps(said).encode() + b"\n")

    def end(self):
        """Leave nothing behind."""
        self.world.close()
        for link in self.links:
            link.close()
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
                stream.close()


def start_shim(*argv, cwd=None, below=(), **environ):
    """Start the shim alone."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [*below, sys.executable, "-IS", "-c", SHIM, *argv]
    return subprocess.Popen(command, cwd=cwd, env=environ, start_new_session=True, text=True, **pipes)


def here(world, ranks):
    """Wait until so many ranks have come."""
    eventually(lambda: len(world.census.come) >= ranks, what=f"{ranks} ranks are here")


def elsewhere(process, signum):
    """Send a signal as somebody who is not the process's parent, which to a rank is mpirun's daemon."""
    subprocess.run(["kill", f"-{signum:d}", str(process.pid)], check=True)


def finished(process, said=None):
    """Return exit code, standard output and standard error of a process that ends by itself."""
    out, err = process.communicate(said, timeout=PATIENCE_S)
    return process.returncode, out, err


def hung_up(link):
    """Return whether the world closes a connection."""
    link.settimeout(PATIENCE_S)
    try:
        return not link.recv(1)
    except ConnectionResetError:
        return True


def alive(pid):
    """Return whether a process runs, zombies aside."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def dies(pid):
    """Return whether a process ends soon."""
    return eventually(lambda: not alive(pid), what=f"{pid} ends")


# Without `wait`, the copy of a shell that is about to become `sleep` would be told, too, and the shell would say so.
STAY = "echo ready; while :; do sleep 0.1 & wait $!; done"
STUBBORN = ("sh", "-c", f"trap '' TERM; {STAY}")
GRACEFUL = ("sh", "-c", f"trap 'echo saved; exit 7' TERM; {STAY}")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def lost(play):
    """Wait until the world knows of a rank that failed."""
    return eventually(lambda: play.world.loss, what="a rank is lost")
