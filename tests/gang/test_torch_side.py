"""torch_side: a real torch beside this process: its store, its ranks, and that nothing of it stays."""

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from marked import until

import preflight_checks
from trainer_agent import isolation
from trainer_agent.gang.ranks import Ranks
from trainer_agent.gang.store import StoreLostError
from trainer_agent.gang.torch_side import TorchSide, TorchSideError, TorchStore, _Pipe
from trainer_agent.process import is_alive

pytestmark = pytest.mark.lab

PROGRAM = str(Path(preflight_checks.__file__).parent / "probes" / "gang_probe.py")
ENVIRON = {"PATH": os.environ["PATH"]}
OPEN = {"timeout_s": 5.0, "answer_s": 20.0}
# Starts a torch side with a store, says so, and waits to be killed.
AGENT = """
import signal, sys
from trainer_agent.gang.torch_side import TorchSide

side = TorchSide(sys.executable, sys.argv[1], {})
side.wait_until_ready(60)
side.ask("serve", port=int(sys.argv[2]), timeout_s=5.0, answer_s=20.0)
side.give({0: {}})
print(side.program.guard, flush=True)
signal.pause()
"""


# Has the store at once, and never reads what is asked of it.
DEAF = """
import json, os, sys

answers = json.loads(sys.argv[1])["store"][1]
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    os.write(answers, (json.dumps({"store": json.loads(line)["store"]}) + "\\n").encode())
"""
# What old or small builds of torch have in its place.
OLD = """
__version__ = "2.0.1"

class distributed:
    is_available = staticmethod(lambda: True)

    class TCPStore:
        set = multi_get = add = compare_set = set_timeout = None
"""
SMALL = """
__version__ = "2.9.0"

class distributed:
    is_available = staticmethod(lambda: False)
"""


def family(guard):
    """Return the pids of a guard and of all below it."""
    return [guard, *(child.pid for child in psutil.Process(guard).children(recursive=True))]


def store_of(side):
    """Return the process that has the store: the first child of the one that imported torch."""
    return psutil.Process(side.program.guard).children()[0].children()[0]


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def sides(port):
    """Two torch sides: the first serves a store, the second is connected to it."""
    with TorchSide(sys.executable, PROGRAM, ENVIRON) as first, TorchSide(sys.executable, PROGRAM, ENVIRON) as second:
        for side in (first, second):
            side.wait_until_ready(60)
        first.ask("serve", port=port, **OPEN)
        second.ask("connect", host="127.0.0.1", port=port, **OPEN)
        yield first, second


def work(sides, port, **how):
    """Give a task to one rank of each side, and return what came of it by node, and all events."""
    task = {"id": "all-1", "kind": "all", "members": [0, 1], "per_node": 1, "backend": "gloo"}
    task |= {"numbers": 4096, "sizes": [1 << 16], "seconds": 0.05, "timeout_s": 60.0, **how}
    environ = {"GLOO_SOCKET_IFNAME": "lo"}
    ranks = [Ranks(side, node=node, host="127.0.0.1", port=port, environ=environ) for node, side in enumerate(sides)]
    for each in ranks:
        assert each.start(task)
    return ranks


def results(sides, ranks, on_event=lambda event: None):
    """Listen until all have a result."""
    found = {}

    def listen():
        for node, (side, each) in enumerate(zip(sides, ranks, strict=True)):
            events = side.events(0.01)
            for event in events:
                on_event(event)
            result = each.hear(events)
            if result:
                found[node] = result
        return len(found) == len(ranks)

    until(listen)
    return [found[node] for node in sorted(found)]


def test_what_one_writes_the_other_reads(sides):
    ours, theirs = (TorchStore(side) for side in sides)
    ours.set("text", "ü\n{}" * 1000)
    assert ["ü\n{}" * 1000] == theirs.get(["text"])
    assert [] == theirs.get([])
    assert [2, 5] == [ours.add("number", 2), theirs.add("number", 3)]
    assert ["5"] == ours.get(["number"])
    assert [True, False] == [theirs.has(["text", "number"]), theirs.has(["text", "absent"])]
    assert ["first", "first", "second"] == [
        ours.compare_set("claim", "", "first"),
        theirs.compare_set("claim", "", "second"),
        theirs.compare_set("claim", "first", "second"),
    ]


def test_a_store_that_is_gone_is_told_at_once(sides):
    """Not only when the time for an answer is up."""
    first, second = sides
    store_of(first).kill()

    with pytest.raises(StoreLostError, match=r"^the meeting place does not answer: \w+Error: "):
        second.ask("get", keys=["text"], answer_s=60.0)


def test_a_store_that_is_frozen_is_lost_for_a_while(sides, port):
    """The process that asked is replaced, and its late answer is nobody's."""
    first, second = sides
    TorchStore(first).set("text", "there")
    store = store_of(first)
    store.suspend()
    try:
        with pytest.raises(StoreLostError, match=r"no answer within 0\.3 s"):
            second.ask("get", keys=["text"], answer_s=0.3)
    finally:
        store.resume()

    second.ask("connect", host="127.0.0.1", port=port, **OPEN)

    assert ["there"] == TorchStore(second).get(["text"])


def test_a_port_that_is_taken_is_told(sides, port):
    with pytest.raises(StoreLostError, match=r"(?i)address already in use"):
        sides[1].ask("serve", port=port, **OPEN)


def test_a_python_without_torch(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    bare = tmp_path / "bare.py"
    bare.write_text("import sys\nsys.stderr.write('No module named torch')\nsys.exit(3)\n")

    with (
        TorchSide(str(python), str(bare), ENVIRON) as side,
        pytest.raises(TorchSideError, match="has no torch: No module named torch") as caught,
    ):
        side.wait_until_ready(60)

    assert caught.value.no_torch


def test_the_program_tells_that_there_is_no_torch(tmp_path):
    """With the real program, by a Python that does not see site-packages."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)

    with (
        TorchSide(str(python), PROGRAM, ENVIRON) as side,
        pytest.raises(TorchSideError, match="has no torch: No module named 'torch'") as caught,
    ):
        side.wait_until_ready(60)

    assert caught.value.no_torch


@pytest.mark.parametrize(
    "torch, lack",
    [(OLD, r"torch 2\.0\.1 has no TCPStore\.check$"), (SMALL, r"torch 2\.9\.0 has no torch\.distributed$")],
    ids=["old", "small"],
)
def test_a_torch_that_cannot_do_it_says_so_before_it_is_ready(tmp_path, torch, lack):
    """It is as good as none: no node is accused of it."""
    (tmp_path / "torch.py").write_text(torch)
    environ = {**ENVIRON, "PYTHONPATH": str(tmp_path)}

    with (
        TorchSide(sys.executable, PROGRAM, environ) as side,
        pytest.raises(TorchSideError, match=f"cannot do it with its torch: {lack}") as caught,
    ):
        side.wait_until_ready(60)

    assert caught.value.no_torch


def test_what_a_python_says_when_it_starts_is_not_taken_for_torch(tmp_path):
    """Instrumentation that an image switches on for every Python may write JSON lines where programs do."""
    words = 'import sys\nsys.stdout.write(\'{"level": "info"}\\n\')\nsys.stdout.flush()\n'
    (tmp_path / "sitecustomize.py").write_text(words)
    with TorchSide(sys.executable, PROGRAM, {**ENVIRON, "PYTHONPATH": str(tmp_path)}) as side:
        side.wait_until_ready(60)
        assert side.events(0.0) == []  # it goes on, and waits for what it is asked


def test_a_torch_that_is_debugged_by_the_job_does_not_debug_here(tmp_path):
    """With DETAIL, and dumps of torch 2.6 on, one rank that fails would spoil every test that follows."""
    (tmp_path / "torch.py").write_text("import os; raise ImportError(os.environ['TORCH_NCCL_DUMP_ON_TIMEOUT'])")
    environ = {**ENVIRON, "PYTHONPATH": str(tmp_path), "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}

    with (
        TorchSide(sys.executable, PROGRAM, environ) as side,
        pytest.raises(TorchSideError, match=r"ImportError: 0$"),
    ):
        side.wait_until_ready(60)


def test_a_python_that_says_everything_but_that_it_is_ready(tmp_path):
    program = tmp_path / "chatty.py"
    program.write_text("import time\nwhile True:\n    print('{}', flush=True)\n    time.sleep(0.01)\n")
    with (
        TorchSide(sys.executable, str(program), ENVIRON) as side,
        pytest.raises(TorchSideError, match=r"has not imported torch within 0\.5 s"),
    ):
        side.wait_until_ready(0.5)


def test_a_long_answer_is_read_in_the_time_that_its_length_takes():
    """What thousands of nodes say comes in thousands of pieces, each of 64 KiB at most."""
    took = []
    for megabytes in (4, 32):
        pipe, text = _Pipe(), "x" * (megabytes << 20)
        with isolation.Children() as children:
            children.start(partial(write, pipe.theirs, f'{{"value": "{text}"}}\n'.encode()), 60.0)
            os.close(pipe.theirs)
            began = time.process_time()
            assert [{"value": text}] == pipe.read(time.monotonic() + 60.0)
            took.append(time.process_time() - began)
        os.close(pipe.fd)

    assert took[1] < 3 * 8 * took[0]


def write(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def test_what_the_store_cannot_do_is_told_by_name(sides):
    """Whatever torch raises: nobody waits for a process that has died of it."""
    with pytest.raises(StoreLostError, match="TypeError: "):
        sides[0].ask("set", key="text", value="there", number=1)


def test_a_store_that_reads_nothing_holds_nobody_up(tmp_path):
    """A verdict of many nodes is more than a pipe holds."""
    program = tmp_path / "deaf.py"
    program.write_text(DEAF)

    with TorchSide(sys.executable, str(program), ENVIRON) as side:
        side.wait_until_ready(60)
        with pytest.raises(StoreLostError, match=r"it takes no request within 0\.3 s"):
            side.ask("set", key="verdict", value="x" * (1 << 20), answer_s=0.3)
    assert not side.has_store


def test_one_that_goes_on_and_says_no_more_is_lost(tmp_path):
    """As one does that the kernel cannot end."""
    program = tmp_path / "mute.py"
    program.write_text("import os, signal\nos.close(1)\nsignal.pause()\n")

    with (
        TorchSide(sys.executable, str(program), ENVIRON) as side,
        pytest.raises(TorchSideError, match="does not end: no answer within 3 s, nor from its guard"),
    ):
        side.wait_until_ready(60)


def test_a_torch_side_that_takes_no_orders_is_lost(sides):
    os.kill(psutil.Process(sides[0].program.guard).children()[0].pid, signal.SIGSTOP)

    with pytest.raises(TorchSideError, match="takes no order within 4 s"):
        sides[0].give({number: {"text": "x" * 4096} for number in range(64)})


def test_a_python_that_does_not_exist():
    with (
        TorchSide("/no/such/python", PROGRAM, ENVIRON) as side,
        pytest.raises(TorchSideError, match="cannot be started: No such file or directory; --python") as caught,
    ):
        side.wait_until_ready(60)

    assert caught.value.no_torch


def test_asking_one_that_has_ended_raises(sides):
    """Whichever way it is asked."""
    first, _ = sides
    psutil.Process(first.program.guard).children()[0].kill()

    with pytest.raises(TorchSideError, match="was killed by signal 9"):
        until(lambda: first.events(1.0) and False)
    with pytest.raises(TorchSideError, match="was killed by signal 9"):
        until(lambda: first.ask("has", keys=["text"]) and False)


def test_nothing_is_left_when_it_is_closed(port):
    files = set(Path("/proc/self/fd").iterdir())
    with TorchSide(sys.executable, PROGRAM, ENVIRON) as side:
        side.wait_until_ready(60)
        side.ask("serve", port=port, **OPEN)
        side.give({0: {}})
        pids = until(lambda: len(found := family(side.program.guard)) >= 3 and found)

    assert [] == [pid for pid in pids if is_alive(pid)]
    assert files == set(Path("/proc/self/fd").iterdir())


def test_nothing_is_left_when_the_agent_is_killed(port):
    argv = [sys.executable, "-c", AGENT, PROGRAM, str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as agent:
        pids = family(int(agent.stdout.readline()))
        agent.kill()

    assert len(pids) >= 3
    assert until(lambda: not [pid for pid in pids if is_alive(pid)])


def test_ranks_of_two_nodes_exchange(sides, port):
    ranks = work(sides, port)

    for node, result in enumerate(results(sides, ranks)):
        [row] = result["ranks"]
        assert ("all-1", True, True, "done") == (result["task"], result["ok"], row["ok"], row["stage"]), node
        assert ["all-gather", "all-reduce"] == sorted(timing["of"] for timing in row["timings"])


def test_a_rank_that_is_killed_is_told_and_replaced(sides, port):
    """The task after it works, with a new process."""
    killed = []

    def kill(event):
        if event.get("stage") == "init" and not killed:
            killed.append(event["pid"])
            os.kill(event["pid"], signal.SIGKILL)

    first = sides[:1]
    [result] = results(first, work(first, port), on_event=kill)
    assert [("all-1", False)] == [(result["task"], result["ok"])]
    assert (-9, "init") == (result["ranks"][0]["code"], result["ranks"][0]["stage"])

    both = results(sides, work(sides, port, id="all-2"))

    assert [True, True] == [result["ok"] for result in both]


def test_a_peer_that_never_comes_ends_the_task(sides, port):
    """By the deadline of the task at the latest, and the next one works."""
    first = sides[:1]
    [result] = results(first, work(first, port, timeout_s=0.5))
    [row] = result["ranks"]
    assert not result["ok"]
    assert row.get("hung") or row["error"]
    assert row["stage"] in ("start", "device", "init")

    both = results(sides, work(sides, port, id="all-2"))

    assert [True, True] == [result["ok"] for result in both]
