"""What of initialization and preflight reaches a TrainJob, and what nobody may do to the job through it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from marked import until
from status_server import endpoint
from structlog.testing import capture_logs

from trainer_agent.errors import RetryError, Terminated
from trainer_agent.initializers.progress import Progress
from trainer_agent.status import LAST_S, find_endpoint, reporting

# Python 3.12 and newer warn of it: the server runs in threads of this process.
pytestmark = [
    pytest.mark.lab,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def children():
    """Return the pids of this process's children."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def files_open():
    """Return the numbers of this process's files."""
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_the_latest_is_sent_at_once_then_now_and_then_and_at_the_end(server):
    """Between two updates lie some seconds, except before the last; numbers stay until they change."""
    with reporting(server.environ, every_s=60) as tell:
        tell(preflight_checks=2, preflight_checks_done=0)
        server.until(1)
        tell(preflight_checks_done=1)
        tell(preflight_checks_done=2)

    seen = [{metric["name"][14:]: metric["value"] for metric in update["metrics"]} for update in server.updates]
    assert [
        {"preflight_checks": "2", "preflight_checks_done": "0"},
        {"preflight_checks": "2", "preflight_checks_done": "2"},
    ] == seen


def test_updates_keep_their_distance(server):
    """However often somebody says something."""
    with reporting(server.environ, every_s=0.4) as tell:
        for number in range(10_000_000):
            tell(init_bytes_done=number)
            if len(server.asked) >= 4:
                break
            time.sleep(0.001)

    first, second, third, fourth = server.times[:4]
    assert 0.35 < min(second - first, third - second, fourth - third)


def test_what_does_not_change_is_not_sent_again(server):
    """Each update is a write to the cluster's memory."""
    with reporting(server.environ, every_s=0.01) as tell:
        tell(init_bytes=7)
        server.until(1)
        for _ in range(20):
            tell(init_bytes=7)

    assert 1 == len(server.asked)


def test_nothing_said_is_nothing_sent(server):
    """Somebody else's numbers stay where there is nothing to say."""
    with reporting(server.environ):
        pass

    assert [] == server.asked


def test_children_may_tell_too(server):
    """As the fetch does, which runs in a process of its own."""
    with reporting(server.environ) as tell:
        pid = os.fork()
        if pid == 0:
            tell(init_files=3)
            os._exit(0)
        os.waitpid(pid, 0)

    assert {"trainer_agent_init_files": "3"} == server.metrics


def test_the_last_is_sent_when_an_error_ends_it(server):
    """That is when somebody looks."""

    def fail():
        with reporting(server.environ) as tell:
            tell(init_files=3)
            server.until(1)
            tell(init_exit_code=20)
            raise RetryError("unreachable", "the server is away", hint="wait")

    with pytest.raises(RetryError):
        fail()

    assert {"trainer_agent_init_files": "3", "trainer_agent_init_exit_code": "20"} == server.metrics


def test_nothing_is_left_behind(server):
    """No process, and no file."""
    before, files = children(), files_open()
    with reporting(server.environ) as tell:
        tell(init_files=3)
        assert len(before) + 1 == len(children())

    assert before == children()
    assert until(lambda: files == files_open())  # the server's own, in this process, too


def test_the_end_waits_a_second_at_most(server_that):
    """For a server that hangs."""
    server = server_that(lambda handler: handler.server.world.over.wait(30))
    before = children()
    with reporting(server.environ) as tell:
        tell(init_files=3)
        server.until(1)
        began = time.monotonic()

    assert LAST_S - 0.1 < time.monotonic() - began < LAST_S + 20
    assert before == children()


def test_a_signal_waits_for_nothing(server_that, monkeypatch):
    """SIGTERM has a grace of its own."""
    monkeypatch.setattr("trainer_agent.status.LAST_S", 25)
    server = server_that(lambda handler: handler.server.world.over.wait(30))
    began = []

    def end():
        with reporting(server.environ) as tell:
            tell(init_files=3)
            server.until(1)
            began.append(time.monotonic())
            raise Terminated(signal.SIGTERM)

    with pytest.raises(Terminated):
        end()

    assert time.monotonic() - began[0] < 20


def test_telling_never_waits(server_that):
    """Nor fails, when the child has no time to listen and when it is dead."""
    server = server_that(lambda handler: handler.server.world.over.wait(30))
    before = children()
    with capture_logs() as logs, reporting(server.environ) as tell:
        tell(init_bytes_done=-1)
        server.until(1)
        began = time.monotonic()
        for number in range(20_000):
            tell(init_bytes_done=number)
        (pid,) = {*children()} - {*before}
        os.kill(int(pid), signal.SIGKILL)
        os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)
        for number in range(1000):
            tell(init_bytes_done=number)
        seconds = time.monotonic() - began

    expected = "the TrainJob's status is not updated: killed by SIGKILL"
    assert (True, [expected]) == (seconds < 20, [log["event"] for log in logs])


def test_telling_after_the_end_is_harmless(server):
    """The number of the pipe may be somebody else's by then."""
    with reporting(server.environ) as tell:
        pass
    tell(init_files=3)

    assert [] == server.asked


def run(program, **environ):
    """Run Python text in a process of its own, with some variables more; it has to end well."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=True)


def test_one_warning_is_enough(server_that, tmp_path):
    """However often the server refuses; it goes to the log and says that the job goes on."""
    server = server_that(lambda handler: handler.answer(403, "Forbidden"))
    program = (
        "import os, time\n"
        "from trainer_agent import log\n"
        "from trainer_agent.status import reporting\n"
        "log.configure(os.environ, form='json')\n"
        "with reporting(os.environ, every_s=0.01) as tell:\n"
        "    for number in range(30):\n"
        "        tell(init_files_done=number)\n"
        "        time.sleep(0.02)\n"
    )
    done = run(program, **server.environ)

    assert 2 <= len(server.asked), done.stderr
    said = "the TrainJob's status is not updated: the server answered 403: Forbidden"
    assert (1, 1, 0) == tuple(done.stderr.count(text) for text in ("status-not-sent", said, "token-1")), done.stderr


def test_without_variables_nothing_is_started():
    """No warning, no process, no library that the network needs."""
    program = (
        "import sys\n"
        "from trainer_agent.commands import run\n"
        "from trainer_agent.status import reporting\n"
        "with reporting({}) as tell:\n"
        "    tell(init_files=3)\n"
        "    import os\n"
        "    print(open(f'/proc/self/task/{os.getpid()}/children').read())\n"
        "print({'http.client', 'ssl', 'trainer_agent.status_sender'} & {*sys.modules})\n"
    )
    done = run(program)

    assert ("\nset()\n", "") == (done.stdout, done.stderr)


@pytest.mark.parametrize("rank", ["PET_NODE_RANK", "JOB_COMPLETION_INDEX"])
def test_of_several_pods_only_the_first_speaks(server, rank):
    """It is one job."""
    job = {**server.environ, "PET_NNODES": "2", "PET_MASTER_ADDR": "job1-node-0-0.job1", "PET_NPROC_PER_NODE": "1"}

    assert (endpoint(server), None) == tuple(find_endpoint({**job, rank: number}) for number in "01")


def test_who_does_not_know_its_rank_is_silent(server):
    """Else all of them would speak."""
    assert None is find_endpoint({**server.environ, "PET_NNODES": "2", "PET_NODE_RANK": "first"})


def test_after_a_restart_the_numbers_of_training_stay(server):
    """An update replaces the whole status: 60 % would be gone."""
    with capture_logs() as logs:
        assert None is find_endpoint({**server.environ, "TRAINER_AGENT_PREFLIGHT_ATTEMPT": "2"})

    assert ["TRAINER_AGENT_PREFLIGHT_ATTEMPT=2"] == [log["why"] for log in logs]


@pytest.mark.parametrize("attempt", ["", "0", "first", "8c0f5059b"])
def test_a_first_attempt_is_told(server, attempt):
    """So is one whose name says nothing."""
    assert endpoint(server) == find_endpoint({**server.environ, "TRAINER_AGENT_PREFLIGHT_ATTEMPT": attempt})


def test_it_can_be_turned_off(server):
    """Without a word."""
    with capture_logs() as logs:
        assert None is find_endpoint({**server.environ, "TRAINER_AGENT_STATUS": "0"})

    assert [] == logs


@pytest.mark.parametrize(
    "change, why",
    [
        ({"URL": ""}, "KUBEFLOW_TRAINER_SERVER_URL not set beside the others"),
        ({"CA_CERT": None}, "KUBEFLOW_TRAINER_SERVER_CA_CERT not set beside the others"),
        ({"TOKEN": " ", "CA_CERT": None}, "KUBEFLOW_TRAINER_SERVER_CA_CERT, KUBEFLOW_TRAINER_SERVER_TOKEN not set"),
        ({"URL": "http://127.0.0.1:80/"}, "KUBEFLOW_TRAINER_SERVER_URL is not https://HOST[:PORT]/PATH"),
        ({"URL": "https:///status"}, "KUBEFLOW_TRAINER_SERVER_URL is not https://HOST[:PORT]/PATH"),
        ({"URL": "https://a:b@c/"}, "KUBEFLOW_TRAINER_SERVER_URL is not https://HOST[:PORT]/PATH"),
        ({"URL": "https://a:99999/"}, "KUBEFLOW_TRAINER_SERVER_URL is not https://HOST[:PORT]/PATH"),
        ({"URL": "https://[::1/"}, "KUBEFLOW_TRAINER_SERVER_URL is not https://HOST[:PORT]/PATH"),
    ],
)
def test_half_of_the_variables_is_a_warning(server, change, why):
    """One, which names what is missing or wrong; nothing is started."""
    changed = {f"KUBEFLOW_TRAINER_SERVER_{word}": value for word, value in change.items()}
    environ = {name: value for name, value in {**server.environ, **changed}.items() if value is not None}

    with capture_logs() as logs, reporting(environ) as tell:
        tell(init_files=3)

    expected = f"the TrainJob's status is not updated: {why}"
    assert [("warning", expected)] == [(log["log_level"], log["event"][: len(expected)]) for log in logs]


def test_a_machine_without_room_for_one_more_process_goes_on(server):
    """The job may still do without it."""
    program = (
        "import os, resource, sys\n"
        "from trainer_agent.status import reporting\n"
        "import trainer_agent.status_sender\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')), 99))\n"
        "with reporting(os.environ) as tell:\n"
        "    tell(init_files=3)\n"
        "print('went on')\n"
    )
    done = run(program, **server.environ)

    assert (True, [], "") == (done.stdout.endswith("went on\n"), server.asked, done.stderr)
    assert "Too many open files" in done.stdout


def test_a_fetch_tells_what_has_come():
    """With the time left at the rate so far, once there is one."""
    told = {}
    progress = Progress(size=100, files=2, tell=told.update)
    progress.update(moved=0, files=0, streams=1)
    before = dict(told)
    progress.update(moved=100, files=1, streams=1)

    known = {"init_bytes": 100, "init_files": 2}
    assert known | {"init_bytes_done": 0, "init_files_done": 0} == before
    assert known | {"init_bytes_done": 100, "init_files_done": 1, "init_seconds_left": 0} == told
