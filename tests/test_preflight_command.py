"""`trainer-agent preflight` as a process: what it prints, writes and exits with."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

pytestmark = pytest.mark.lab

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "report.schema.json").read_text())
KEBAB = re.compile("[a-z0-9]+(-[a-z0-9]+)*")
WARNS = {"NCCL_P2P_DISABLE": "1"}
FAILS = {"PET_NNODES": "0"}
UNREACHABLE = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
GPU = ["gpu-count", "gpu-health", "gpu-memory", "gpu-link", "gpu-clocks", "driver-cuda"]
WORK = ["cuda", "gemm", "bandwidth", "nccl-loopback", "torchrun-smoke"]
HOST = ["rdma", "clock", "rendezvous-dns", "mpi", "storage", "kube-api"]
GANG = ["roll-call", "consistency", "collective"]
OURS = ["environment", "cgroup", "shm", "limits", *GPU, *WORK, *HOST, *GANG]


def demand_valid(data):
    """The schema, and what our own checks promise beyond it: a message, a hint and a kebab-case code each."""
    jsonschema.validate(data, SCHEMA)
    findings = [f for c in data["checks"] for f in c["findings"]]
    assert [] == [c["name"] for c in data["checks"] if not c["message"]]
    assert [] == [f for f in findings if not (f["message"] and f["hint"] and KEBAB.fullmatch(f["code"]))]


@pytest.fixture
def preflight(tmp_path):
    """The program, with a termination log of its own."""

    def run(*args, **environ):
        argv = [sys.executable, "-m", "trainer_agent", "preflight", *args]
        known = {
            "TRAINER_AGENT_PREFLIGHT_PROFILE": "quick",  # what works with torch has tests of its own
            "TRAINER_AGENT_PREFLIGHT_TERMINATION_LOG": str(tmp_path / "termination-log"),
            **environ,
        }
        return subprocess.run(
            argv, env={**os.environ, **known}, capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.fixture
def report(preflight):
    """The program with JSON output, checked against the schema: its exit code and its report."""

    def run(*args, **environ):
        done = preflight(*args, "--output", "json", **environ)
        data = json.loads(done.stdout)
        demand_valid(data)
        return done.returncode, data

    return run


def statuses(data):
    return {c["name"]: c["status"] for c in data["checks"]}


def test_by_hand_on_any_machine_it_says_go(report):
    """No environment at all: this one machine is checked within seconds, and nothing fails."""
    code, data = report()

    assert OURS == [c["name"] for c in data["checks"]]
    assert code in (0, 10)
    assert {"fail", "error"}.isdisjoint(statuses(data).values())
    assert data["duration_s"] < 20


def test_every_exit_code(report):
    ends = {
        0: report("--checks", "environment"),
        10: report("--checks", "environment", **WARNS),
        20: report("--checks", "kube-api", "--require-kube-api", **UNREACHABLE),
        30: report("--checks", "environment", **FAILS),
    }

    assert {
        0: (0, 0, "pass", "continue"),
        10: (10, 10, "warn", "continue"),
        20: (20, 20, "retry", "retry"),
        30: (30, 30, "fatal", "stop"),
    } == {wanted: (code, d["exit_code"], d["verdict"], d["action"]) for wanted, (code, d) in ends.items()}


def test_as_a_gate_a_warning_lets_the_pod_go_on_and_stays_in_the_report(report):
    by_option = report("--checks", "environment", "--gate", **WARNS)
    by_variable = report("--checks", "environment", TRAINER_AGENT_PREFLIGHT_GATE="1", **WARNS)

    assert [(0, "warn", 10)] * 2 == [(code, d["verdict"], d["exit_code"]) for code, d in (by_option, by_variable)]


def test_a_gate_stays_shut_for_failures(preflight):
    assert 30 == preflight("--checks", "environment", "--gate", **FAILS).returncode


def test_what_was_not_asked_for_is_not_skipped_either(report):
    """Each skipped check has one row, in the order of the report."""
    _, data = report("--checks", "environment,shm,limits", "--skip", "limits,shm,limits,clock")

    assert ["environment", "shm", "limits"] == [c["name"] for c in data["checks"]]


def test_skipped_checks_are_in_the_report_and_say_so(report):
    code, data = report("--checks", "environment,shm", "--skip", "environment", **FAILS)

    (skipped,) = [c for c in data["checks"] if c["name"] == "environment"]
    assert ("skip", "left out by --skip") == (skipped["status"], skipped["message"])
    assert code in (0, 10)


def test_the_command_line_wins_over_the_variable(report):
    _, data = report("--checks", "shm", TRAINER_AGENT_PREFLIGHT_CHECKS="environment")

    assert ["shm"] == list(statuses(data))


@pytest.mark.parametrize("name", ["environment", "all", " environment , shm "])
def test_an_ignored_failure_is_a_warning_that_is_still_shown(report, name):
    code, data = report("--checks", "environment", "--ignore", name, **FAILS)

    (check,) = data["checks"]
    assert (10, "warn", "continue") == (code, check["status"], check["action"])
    assert check["message"].endswith("(failure ignored by --ignore environment)")
    assert [("nnodes-invalid", "warning")] == [(f["code"], f["severity"]) for f in check["findings"]]


@pytest.mark.parametrize("option", ["--checks", "--skip", "--ignore"])
def test_an_unknown_name_is_wrong_usage(preflight, option):
    done = preflight(option, "shm,nonsense")

    assert (2, "") == (done.returncode, done.stdout)
    assert f"There is no check nonsense. There are: {', '.join(OURS)}." in done.stderr


@pytest.mark.parametrize(
    "args", [["--profile", "fast"], ["--timeout", "0"], ["--timeout", "x"], ["--output", "yaml"], ["extra"]]
)
def test_other_wrong_usage(preflight, args):
    done = preflight(*args)

    assert (2, "") == (done.returncode, done.stdout)
    assert "Traceback" not in done.stderr


def test_standard_output_and_the_file_have_the_same_report(preflight, tmp_path):
    file = tmp_path / "new" / "report.json"

    done = preflight("--checks", "environment,shm", "--output", "json", "--report-file", str(file), **WARNS)

    assert done.stdout == file.read_text()


def test_the_text_names_the_failure_first_its_hint_and_the_way_around(preflight):
    lines = preflight("--checks", "environment,clock", **FAILS).stdout.splitlines()

    assert lines[0].startswith("preflight FATAL  node 0 of 1 (")
    assert [
        "FAIL   environment  torch: nodes 1, this one has rank 0, 1 process here",
        "       error: PET_NNODES='0' is neither a number of nodes (1 or more) nor a range MIN:MAX [nnodes-invalid]",
        "         -> set PET_NNODES to a number such as 2, or to a range such as 1:4 for an elastic job",
    ] == lines[2:5]
    assert "action: stop. To go on in spite of a check: --ignore environment" == lines[-1]


def test_the_termination_message_names_the_culprit_first(preflight, tmp_path):
    preflight("--checks", "environment,clock", **FAILS, **WARNS)

    message = json.loads((tmp_path / "termination-log").read_text())
    assert ("fatal", 30, "stop") == (message["verdict"], message["exit_code"], message["action"])
    assert ["nnodes-invalid", "transport-disabled"] == [f["code"] for f in message["findings"]]


def test_the_termination_message_fits_however_much_is_wrong(preflight, tmp_path):
    paths = [f"/nowhere/{'ä' * 60}/{n}" for n in range(60)]

    done = preflight("--checks", "storage", *(arg for path in paths for arg in ("--storage", path)))

    written = (tmp_path / "termination-log").read_bytes()
    message = json.loads(written)
    assert 30 == done.returncode
    assert len(written) <= 4096
    assert 60 == len(message["findings"]) + message["left_out"]


def test_a_termination_log_that_cannot_be_written_is_no_failure(preflight):
    done = preflight("--checks", "environment", "--termination-log", "/nowhere/log")

    assert 0 == done.returncode
    assert "cannot write the termination message to /nowhere/log" in done.stderr


def test_a_report_file_that_cannot_be_written_does_not_change_the_verdict(preflight):
    """It is about this node; a volume that is full or not there is another matter, and is told."""
    done = preflight("--checks", "environment", "--report-file", "/proc/report.json", "--output", "json")

    assert (0, 0) == (done.returncode, json.loads(done.stdout)["exit_code"])
    warning = json.loads(done.stderr.splitlines()[-1])
    expected = ("warning", "not-writable", "cannot write /proc/report.json: No such file or directory")
    assert expected == (warning["level"], warning["code"], warning["event"])


def test_a_report_file_on_a_dead_server_holds_up_nothing(preflight, tmp_path):
    """Nobody ever reads this one, as nobody answers there."""
    os.mkfifo(tmp_path / "fifo")

    done = preflight("--checks", "environment", "--report-file", str(tmp_path / "fifo"), "--output", "json", **FAILS)

    assert (30, 30) == (done.returncode, json.loads(done.stdout)["exit_code"])
    assert f"cannot write {tmp_path / 'fifo'}: no answer within 10 s" in done.stderr


def test_a_report_file_may_be_standard_output(preflight):
    done = preflight("--checks", "environment", "--report-file", "/dev/stdout")

    assert 0 == json.JSONDecoder().raw_decode(done.stdout)[0]["exit_code"]


def test_secrets_appear_nowhere(preflight, tmp_path):
    """Not even where the same value stands in a variable that messages quote."""
    secrets = {
        "ACCESS_TOKEN": "hf_aaaaaaaaaaaaaaaa",
        "SECRET_ACCESS_KEY": "bbbbbbbbbbbbbbbbbbbbbb",
        "ACCESS_KEY_ID": "AKIACCCCCCCCCCCC",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": "dddddddddddddddddd",
        "MY_PASSWORD": "eeeeeeeeeeee",
    }
    quoted = {
        "PET_NNODES": secrets["ACCESS_TOKEN"],
        "PET_NPROC_PER_NODE": secrets["SECRET_ACCESS_KEY"],
        "NCCL_SOCKET_IFNAME": secrets["ACCESS_KEY_ID"],
        "NCCL_IB_HCA": secrets["KUBEFLOW_TRAINER_SERVER_TOKEN"],
        "TRAINER_AGENT_PREFLIGHT_STORAGE": f"/nowhere/{secrets['MY_PASSWORD']}",
    }
    file = tmp_path / "report.json"

    done = preflight("--report-file", str(file), **secrets, **quoted)

    seen = done.stdout + done.stderr + file.read_text() + (tmp_path / "termination-log").read_text()
    assert 30 == done.returncode
    assert "PET_NNODES='***'" in seen
    assert [] == [value for value in secrets.values() if value in seen]


JUNK = [
    "",
    " ",
    "-1",
    "1.5",
    "٣",
    "9" * 5000,
    "1:",
    "nan",
    "\t2\n",
    "$(X)",
    b"\xff\xfe".decode(errors="surrogateescape"),
]
NAMES = [
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_RDZV_ENDPOINT",
    "JOB_COMPLETION_INDEX",
    "HOSTNAME",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "CUDA_VISIBLE_DEVICES",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "TMPDIR",
]


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: ascii(junk)[:12])
def test_a_bad_environment_gives_findings_and_never_a_traceback(preflight, tmp_path, junk, form):
    """The same nonsense in every variable that is read; with a number of two in them, nodes wait for each other."""
    args = ["--skip", "kube-api", "--rendezvous-timeout", "0", "--gang-timeout", "1", "--output", form]

    done = preflight(*args, **dict.fromkeys(NAMES, junk))

    assert done.returncode in (0, 10, 20, 30), done.stderr
    assert "Traceback" not in done.stderr
    assert "verdict" in json.loads((tmp_path / "termination-log").read_text())
    if form == "json":
        data = json.loads(done.stdout)
        demand_valid(data)  # it is UTF-8, too
        assert "error" not in statuses(data).values()


def test_the_wait_for_rank_0_is_not_cut_by_the_budget(report):
    """A name that never resolves is a finding of its own, not a check that ran out of time."""
    environ = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "nobody.invalid"}

    code, data = report("--checks", "rendezvous-dns", "--timeout", "0.1", "--rendezvous-timeout", "0.6", **environ)

    assert code in (20, 30)
    assert {"rendezvous-dns": "fail"} == statuses(data)
    assert data["duration_s"] > 0.5


@pytest.mark.parametrize("value", ['{"idle_c": 80,}', '{"idle": 80}', "/no/such/file", "FIFO"])
def test_thresholds_with_a_mistake_shut_the_gate(report, tmp_path, value):
    """Also where the file does not answer, as on a dead file server, and whether there are GPUs or not."""
    fifo = tmp_path / "thresholds.json"
    os.mkfifo(fifo)
    variable = {"TRAINER_AGENT_GPU_THRESHOLDS": value.replace("FIFO", str(fifo))}

    code, data = report("--checks", "gpu-health,gpu-link,shm", "--gate", **variable)

    assert (30, "fatal", "stop") == (code, data["verdict"], data["action"])
    assert {"gpu-health": "fail", "gpu-link": "fail"} == {n: s for n, s in statuses(data).items() if n != "shm"}
    shut = [c for c in data["checks"] if c["name"] != "shm"]
    assert [["gpu-thresholds-invalid"]] * 2 == [[f["code"] for f in c["findings"]] for c in shut]
    assert data["duration_s"] < 30


def test_nobody_reads_standard_output_and_the_report_is_written(tmp_path):
    """It comes last: neither a full disk behind it nor a reader that went away costs the file or the message."""
    file, log = tmp_path / "report.json", tmp_path / "termination-log"
    argv = [sys.executable, "-m", "trainer_agent", "preflight", "--checks", "environment", "--report-file", str(file)]
    with Path("/dev/full").open("w") as full:
        environ = {**os.environ, **FAILS}
        subprocess.run([*argv, "--termination-log", str(log)], env=environ, stdout=full, timeout=60, check=False)

    assert ["fatal", "fatal"] == [json.loads(path.read_text())["verdict"] for path in (file, log)]
