"""
What can go wrong with nodes and their network, done to a lab from outside.

Every fault is there when its function returns, and goes when it is undone, or when the lab ends:

    with cut_pair(lab[0], lab[2]):
        ...

Silent loss is what a routed network does, and pods are routed: ARP is answered on, so that nobody is told. A cut link
is told to the node, which loses its carrier; others learn of it when ARP fails ("No route to host"), after seconds.
All of it works in user namespaces too.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import psutil
from podlab import LAUNCHER, PATH, SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from podlab import Container, Lab, Pod

TOOLS = ("nft", "tc", "gcc")
# So little that the links limit a gang, and not two cores: when all pairs of 8 nodes exchange 4 MiB at a time, each
# reaches 0.1 to 0.8 GB/s with gloo where nothing limits it, and 0.06 with this rate.
USUAL, TENTH = "1gbit", "100mbit"
SHIM = Path(__file__).parent / "wrong_numbers" / "wrong_numbers.c"
TABLES = itertools.count()


def missing_tools() -> list[str]:
    """Return the programs that faults need and this machine lacks."""
    return [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]


class Fault:
    """Something that goes wrong until it is undone."""

    def __init__(self, *undo: Callable[[], object]) -> None:
        self._undo = list(undo)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Make it whole; a second time does nothing."""
        while self._undo:
            self._undo.pop(0)()


def cut(pod: Pod) -> Fault:
    """Pull the cable: neither end has a carrier, no frame passes, and the node's own connects fail after some 3 s."""
    lab = pod.lab
    lab.network(lab.holder, "ip", "link", "set", pod.link, "down")
    return Fault(lambda: lab.network(lab.holder, "ip", "link", "set", pod.link, "up"))


def half_cut(pod: Pod, direction: Literal["from", "to"]) -> Fault:
    """Lose every IP packet that the node sends, or every one that is sent to it, and tell nobody."""
    return loss(pod, 1.0, direction)


def loss(pod: Pod, share: float = 0.3, direction: Literal["from", "to", "both"] = "both") -> Fault:
    """
    Lose this share of IP packets at random, each on its own, and tell nobody.

    A packet is what crosses the bridge: up to 64 KiB of a TCP stream, as nothing below has to cut it smaller.
    """
    chance = f"numgen random mod 1000 < {round(share * 1000)}" if share < 1 else ""
    hooks = {}
    if direction != "to":
        hooks["prerouting"] = [f"iifname {pod.link} meta protocol != arp {chance} drop"]
    if direction != "from":
        hooks["postrouting"] = [f"oifname {pod.link} meta protocol != arp {chance} drop"]
    return _table(pod.lab, "bridge", hooks)


def cut_pair(a: Pod, b: Pod, *, how: Literal["silent", "refused"] = "silent") -> Fault:
    """
    Lose every IP packet between two nodes, both ways, while both reach all others.

    `refused` is what a firewall that rejects does: TCP is answered with a reset, also on connections that are open,
    and everything else with "administratively prohibited".
    """
    if how == "refused":
        return _rejected(a, b)
    ways = ((a.link, b.link), (b.link, a.link))
    lost = [f"iifname {source} oifname {target} meta protocol != arp drop" for source, target in ways]
    return _table(a.lab, "bridge", {"forward": lost})


def slow(pod: Pod, rate: str = TENTH) -> Fault:
    """Let the node's link carry so much each way; what comes faster waits in a queue of 100 ms, or is lost."""
    lab = pod.lab
    ends = [(lab.holder, pod.link), (pod.holder, "eth0")]
    # A burst has room for the largest packet there is.
    limit = ["tbf", "rate", rate, "burst", "128kb", "latency", "100ms"]
    for pid, link in ends:
        lab.network(pid, "tc", "qdisc", "replace", "dev", link, "root", *limit)
    return Fault(*[_undo_slow(lab, pid, link) for pid, link in ends])


def _undo_slow(lab: Lab, pid: int, link: str) -> Callable[[], object]:
    return lambda: lab.network(pid, "tc", "qdisc", "del", "dev", link, "root")


def _rejected(a: Pod, b: Pod) -> Fault:
    rejected = ("meta l4proto tcp reject with tcp reset", "reject with icmp type admin-prohibited")
    ways = ((a, b), (b, a))
    hooks = {f"ingress device {x.link}": [f"ip daddr {y.address} {rule}" for rule in rejected] for x, y in ways}
    return _table(a.lab, "netdev", hooks)


def _table(lab: Lab, family: str, hooks: Mapping[str, Sequence[str]]) -> Fault:
    """Put rules in their hooks where the bridge is, in a table that the fault takes away as a whole."""
    table = f"fault{next(TABLES)}"
    lines = [f"table {family} {table} {{"]
    for number, (hook, rules) in enumerate(hooks.items()):
        lines += [f"chain c{number} {{", f"type filter hook {hook} priority 0;", *rules, "}"]
    lab.network(lab.holder, "nft", "-f", "-", text="\n".join([*lines, "}", ""]))
    return Fault(lambda: lab.network(lab.holder, "nft", "delete", "table", family, table))


def dns_flapping(pod: Pod, *, known_s: float = 0.5, unknown_s: float = 1.0) -> Fault:
    """Let the name server forget the pod's name (NXDOMAIN) and know it again, by turns, unknown first; known after."""
    lab, stop = pod.lab, threading.Event()

    def flap() -> None:
        while True:
            lab.withdraw(pod)
            over = stop.wait(unknown_s)
            lab.publish(pod)
            if over or stop.wait(known_s):
                return

    thread = threading.Thread(target=flap, name=f"flapping {pod.name}")
    thread.start()
    fault = Fault(stop.set, thread.join)
    lab.stack.callback(fault.undo)
    return fault


class Stranger(Fault):
    """Somebody who talks to a port that is none of his business; `container` prints what he did."""

    def __init__(self, container: Container) -> None:
        super().__init__(lambda: kill(container), container.wait)
        self.container = container


def stranger(pod: Pod, port: int, *, source: Pod | None = None) -> Stranger:
    """
    Connect to a port again and again, from the launcher's pod unless told otherwise, each time with other nonsense.

    HTTP, a TLS hello, random bytes, huge lengths, a line without an end, a reset, and connections that stay open and
    say nothing or half of something. scripts/stranger.py has the list; it prints a line of JSON for each.
    """
    source = source or pod.lab.pods[LAUNCHER]
    return Stranger(source.run(sys.executable, str(SCRIPTS / "stranger.py"), pod.address, str(port)))


def freeze(container: Container) -> Fault:
    """Stop every process of a container (SIGSTOP): its connections stay open, and nobody answers on them."""
    stopped: set[int] = set()
    while new := {p.pid for p in container.processes()} - stopped:
        for pid in new:
            _send(pid, signal.SIGSTOP)
        stopped |= new
    return Fault(lambda: [_send(p.pid, signal.SIGCONT) for p in container.processes()])


def freeze_agent(container: Container) -> Fault:
    """Stop only the container's command (SIGSTOP); its children go on."""
    _send(container.pid, signal.SIGSTOP)
    return Fault(lambda: _send(container.pid, signal.SIGCONT))


def kill(container: Container) -> None:
    """
    Kill the container's command (SIGKILL); with PID 1 the kernel ends all of the container.

    What it returns then is 1 or -9: unshare of util-linux 2.38 does not pass the signal on, others do.
    """
    _send(container.pid, signal.SIGKILL)


def _send(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        os.kill(pid, signum)


def wrong_numbers(directory: Path, *, min_bytes: int = 1024) -> dict[str, str]:
    """Return the environment of a process whose larger gloo messages each have one wrong number, and no error."""
    library = directory / "wrong_numbers.so"
    flags = ["-std=gnu11", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(SHIM), "-ldl"], check=True, timeout=60)
    return {"LD_PRELOAD": str(library), "WRONG_NUMBERS_MIN_BYTES": str(min_bytes)}
