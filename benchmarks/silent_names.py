"""
What a name server that does not answer costs a connection to torch's store, with and without our setting for it.

torch asks for the name of every address that it connects to, or that connects to it, to have it for its log; one that
is new enough stops in a process after the first that failed. This runs in namespaces of its own, with 10.9.9.1 as its
address and a name server there that says nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from trainer_agent.gang.torch_side import NO_NAMES

ADDRESS, PORT, CLIENTS = "10.9.9.1", 29501, 3
LIMIT = timedelta(seconds=300)
SETUP = 'set -e; ip link set lo up; ip addr add "$1/32" dev lo; mount --bind "$2" /etc/resolv.conf; shift 2; exec "$@"'


def main() -> None:
    """Print the lines of both."""
    with tempfile.TemporaryDirectory() as directory:
        resolv = Path(directory) / "resolv.conf"
        resolv.write_text(f"nameserver {ADDRESS}\n")
        inside = ["sh", "-c", SETUP, "sh", ADDRESS, str(resolv), sys.executable, __file__, "inside"]
        unshare = ["unshare", "--net", "--mount", "--map-root-user", *inside]
        for name, environ in (("as torch is", {}), ("with RES_OPTIONS=attempts:0", NO_NAMES)):
            done = subprocess.run(unshare, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True, check=True)
            print(f"{name}: {done.stdout.strip()}", flush=True)


def inside() -> None:
    """Open a store, connect some clients one after the other, each in a process of its own, and print the times."""
    from torch.distributed import TCPStore

    fork = multiprocessing.get_context("fork")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent, ExitStack() as stack:
        silent.bind((ADDRESS, 53))
        # Forked now: a process in which torch has asked once and was not answered asks no more.
        pools = [stack.enter_context(fork.Pool(1)) for _ in range(CLIENTS)]
        began = time.monotonic()
        served = TCPStore(ADDRESS, PORT, None, is_master=True, timeout=LIMIT, wait_for_workers=False)
        opened = time.monotonic() - began
        times = [pool.apply(connect) for pool in pools]
        del served
    print(f"{opened:.2f} s to open it, then {', '.join(f'{seconds:.2f}' for seconds in times)} s to connect")


def connect() -> float:
    """Return the seconds until a store has answered."""
    from torch.distributed import TCPStore

    began = time.monotonic()
    store = TCPStore(ADDRESS, PORT, None, is_master=False, timeout=LIMIT, wait_for_workers=False)
    store.set("key", "value")
    return time.monotonic() - began


if __name__ == "__main__":
    inside() if sys.argv[1:] == ["inside"] else main()
