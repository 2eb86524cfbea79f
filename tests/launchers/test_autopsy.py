"""autopsy: which rank failed first, how, and its last words, from real lines of torchrun 2.13."""

import json
import time

import pytest

from trainer_agent.launchers.autopsy import KEPT_BYTES, Autopsy, Failure

LOG = (
    b"W1121 03:30:35.047000 7861 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 7866 closing\n"
)
BANNER = b"W1121 03:30:34.651000 7861 torch/distributed/run.py:874] ***\n"
WORDS = (
    b"Traceback (most recent call last):\n",
    b'  File "/tmp/tr/t.py", line 4, in <module>\n',
    b"RuntimeError: boom from rank 1\n",
)
MET = (
    "Traceback (most recent call last):\n  ...\n"
    "torch.distributed.DistStoreError: Timed out after 4 seconds waiting for clients. 1/2 clients joined.\n"
)


def event(state, *, source="WORKER", rank=None, pid=None, code=None, raw_error=None):
    """Return an event line as the console handler prints it."""
    worker = {
        "local_rank": [rank],
        "role_rank": [rank],
        "role_world_size": [2],
        "exit_code": [code],
        "worker_pid": [pid],
    }
    details = {"group_world_size": 1, "entry_point": "python", **(worker if source == "WORKER" else {})}
    metadata = {
        "run_id": "d81093f1",
        "global_rank": rank,
        "group_rank": 0,
        "worker_id": None if pid is None else str(pid),
        "role": "default",
        "hostname": "localhost",
        "state": state,
        "total_run_time": 0,
        "rdzv_backend": "c10d",
        "raw_error": raw_error,
        "metadata": json.dumps(details),
        "agent_restarts": 0,
        "duration_ms": None,
    }
    data = {"name": f"torchelastic.worker.status.{state}", "source": source, "timestamp": 0, "metadata": metadata}
    return json.dumps(data).encode() + b"\n"


def observed(code, *, rank=1, pid=7867):
    return (
        f"E1121 03:30:35.048000 7861 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) "
        f"local_rank: {rank} (pid: {pid}) of binary: /venv/bin/python\n"
    ).encode()


STARTS = (event("START", rank=0, pid=7866), event("START", rank=1, pid=7867))


def autopsy(*lines, elastic=True, error_file=None):
    found = Autopsy(elastic_agent=elastic, error_file=error_file)
    for line in lines:
        found.feed(line)
    return found


def test_the_event_lines_are_those_of_torchrun():
    """A line copied from torchrun 2.13 is understood and not shown."""
    line = (
        rb'{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": '
        rb'"d81093f1-c80d-4ca2-90e9-d5d3006c4ee9", "global_rank": 1, "group_rank": 0, "worker_id": "7867", "role": '
        rb'"default", "hostname": "localhost", "state": "FAILED", "total_run_time": 0, "rdzv_backend": "c10d", '
        rb'"raw_error": "{\"message\": \"<NONE>\", \"errorTraits\": {\"category\": \"system_terminated_error\", '
        rb'\"retryability\": \"False\"}}", "metadata": "{\"group_world_size\": 1, \"entry_point\": \"python\", '
        rb"\"local_rank\": [1], \"role_rank\": [1], \"role_world_size\": [2], \"exit_code\": [42], \"worker_pid\": "
        rb'[7867]}", "agent_restarts": 0, "duration_ms": null}}'
    )
    found = Autopsy(elastic_agent=True)
    assert not found.feed(line)
    assert Failure(1, 1, 42) == found.failure(1)


@pytest.mark.parametrize("code, shell, words", [(42, 42, "exited with code 42"), (-9, 137, "was killed by SIGKILL")])
def test_the_first_observed_failure(code, shell, words):
    """torchrun exits 1 and kills the others by SIGTERM; the rank that it saw first is the culprit."""
    siblings = (event("FAILED", rank=0, pid=7866, code=-15), event("FAILED", rank=1, pid=7867, code=code))
    failure = autopsy(BANNER, *STARTS, LOG, observed(code), *siblings).failure(1)
    expected = (Failure(1, 1, code), shell, f"rank 1 (local rank 1) {words}")
    assert expected == (failure, failure.code, str(failure))


@pytest.mark.parametrize("code, shell, words", [(42, 42, "exited with code 42"), (-9, 137, "was killed by SIGKILL")])
def test_a_torchrun_without_events(code, shell, words):
    """Up to torch 2.7 there is only its one line; the rank in the whole job is not in it."""
    found = autopsy(BANNER, *WORDS, LOG, observed(code), b"Traceback of torchrun\n")
    failure = found.failure(1)
    expected = (Failure(None, 1, code, b"".join(WORDS).decode().strip()), shell, f"local rank 1 {words}")
    assert expected == (failure, failure.code, str(failure))


def test_a_torchrun_without_events_whose_rank_lost_its_store():
    """The ranks ran, so the nodes had met, whatever the last words are."""
    assert autopsy(MET.encode(), observed(1)).never_met == ""
    assert autopsy(MET.encode()).never_met.startswith("torch.distributed.DistStoreError")


@pytest.mark.parametrize(
    "code, own, words",
    [
        (137, -9, "was killed by SIGKILL"),
        (192, -64, "was killed by SIGRTMAX"),
        (160, 160, "exited with code 160"),  # 32 and 33 are threads' own
        (193, 193, "exited with code 193"),
        (255, 255, "exited with code 255"),
    ],
)
def test_a_code_that_no_signal_has(code, own, words):
    """Above 128 an exit code tells of a signal only where there is one of that number: `exit 255` is an exit."""
    failure = autopsy(elastic=False).failure(code)
    assert (Failure(None, None, own), code, f"the command {words}") == (failure, failure.code, str(failure))


def test_a_rank_killed_in_the_same_moment_is_the_cause():
    """The rank that lost its connection is seen first, but the killed one is why."""
    failed = (event("FAILED", rank=0, pid=7866, code=-9), event("FAILED", rank=1, pid=7867, code=1))
    assert Failure(0, 0, -9) == autopsy(*STARTS, observed(1), *failed).failure(1)


def test_a_rank_killed_long_after_is_not(monkeypatch):
    """After its shutdown timeout torchrun itself kills what is left."""
    found = autopsy(*STARTS, observed(1), event("FAILED", rank=1, pid=7867, code=1))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 30)
    found.feed(event("FAILED", rank=0, pid=7866, code=-9))
    assert Failure(1, 1, 1) == found.failure(1)


@pytest.mark.parametrize(
    "codes, expected",
    [
        ((-15, 3), Failure(1, 1, 3)),
        ((-15, -11), Failure(1, 1, -11)),
        ((-15, -15), Failure(0, 0, -15)),
        ((4, 3), Failure(0, 0, 4)),
        ((0, None), Failure(0, 0, 1)),
    ],
)
def test_without_an_observed_failure(codes, expected):
    """A killed rank comes before one that exited, and both before those that torchrun ended."""
    failed = [event("FAILED", rank=rank, pid=rank + 1, code=code) for rank, code in enumerate(codes)]
    assert expected == autopsy(*STARTS, *failed).failure(1)


def test_a_restart_forgets_earlier_failures():
    """With --max-restarts only the last attempt counts."""
    first = (*STARTS, observed(7, rank=0, pid=7866), event("FAILED", rank=0, pid=7866, code=7))
    second = (event("START", rank=0, pid=1), event("START", rank=1, pid=2), event("FAILED", rank=1, pid=2, code=8))
    assert Failure(1, 1, 8) == autopsy(*first, *second).failure(1)


def test_the_last_words_are_the_last_traceback():
    """What the rank printed counts; torchrun's own lines, and all that follows the failure, do not."""
    found = autopsy(b"warming up\n", BANNER, *STARTS, *WORDS, LOG, observed(1), b"Traceback of torchrun\n")
    assert b"".join(WORDS).decode().strip() == found.failure(1).error


def test_without_a_traceback_the_last_lines_count():
    """Twenty lines are enough to see what went on."""
    lines = [f"line {i}\n".encode() for i in range(30)]
    assert "\n".join(f"line {i}" for i in range(10, 30)) == autopsy(*lines, elastic=False).failure(1).error


def test_the_tail_is_bounded():
    """However much is printed, and however long a line, only the end is kept."""
    found = autopsy(*(b"x" * 1000 + b"\n" for _ in range(1000)))
    assert 0 < found.tail_bytes <= KEPT_BYTES
    assert KEPT_BYTES == autopsy(b"x" * (KEPT_BYTES + 1)).tail_bytes


def test_a_command_without_ranks():
    """A plain command failed itself, and its lines are all its own."""
    lines = (b'{"name": "torchelastic.fake"}\n', BANNER, observed(1), b"the end \xff\n")
    found = Autopsy(elastic_agent=False)
    assert [True] * 4 == [found.feed(line) for line in lines]
    failure = found.failure(137)
    assert (-9, 137, "the command was killed by SIGKILL") == (failure.exit_code, failure.code, str(failure))
    assert b"".join(lines).decode(errors="replace").strip() == failure.error


@pytest.mark.parametrize(
    "raw_error, expected",
    [
        (MET, "torch.distributed.DistStoreError: Timed out after 4 seconds waiting for clients. 1/2 clients joined."),
        ("x\nRendezvousTimeoutError", "RendezvousTimeoutError"),
        ("x\nValueError: no DistStoreError", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_nodes_that_never_met(raw_error, expected):
    """A rendezvous that nobody joined is told by torch's own exception, before any rank started."""
    failed = event("FAILED", source="AGENT", raw_error=raw_error)
    assert expected == autopsy(event("RENDEZVOUS", source="AGENT"), failed).never_met
    assert autopsy(*STARTS, failed).never_met == ""


@pytest.mark.parametrize(
    "line",
    [
        b'{"name": "torchelastic.',
        b'{"name": "torchelastic.x"}',
        b'{"name": "torchelastic.x", "metadata": 1}',
        b'{"name": "torchelastic.x", "metadata": {"metadata": 1}}',
        b'{"name": "torchelastic.x", "source": "WORKER", "metadata": {"state": "FAILED", "metadata": "[]"}}',
        b'{"name": "torchelastic.x", "source": "WORKER", "metadata": {"metadata": "{}"}}',
        b'{"name": "torchelastic.x", "a": ' + b"[" * 50_000,
        b'{"name": "torchelastic.\xff"}',
        event("FAILED", rank=0, pid=1, code="x"),
    ],
)
def test_lines_that_only_look_like_events(line):
    """What is not understood is shown to the user, and never ends the reading."""
    found = Autopsy(elastic_agent=True)
    assert found.feed(line)
    assert Failure(None, None, 1) == found.failure(1)


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"message": {"message": "short", "extraInfo": {"py_callstack": "long"}}}', "long"),
        ('{"message": {"message": "short", "extraInfo": {}}}', "short"),
        ('{"message": {"message": "short", "extraInfo": null}}', "short"),
        ('{"message": {"message": "short", "extraInfo": "x"}}', "short"),
        ('{"message": "plain"}', "plain"),
        ('{"message": {}}', "from stderr"),
        ("{}", "from stderr"),
        ("[]", "from stderr"),
        ("", "from stderr"),
        ("[" * 100_000, "from stderr"),
        (None, "from stderr"),
    ],
)
def test_the_error_file(tmp_path, text, expected):
    """What @record wrote is better than standard error; every other form of the file is ignored."""
    path = tmp_path / "error.json"
    if text is not None:
        path.write_text(text)
    failed = event("FAILED", rank=0, pid=1, code=3)
    assert Failure(0, 0, 3, expected) == autopsy(b"from stderr\n", failed, error_file=path).failure(1)
