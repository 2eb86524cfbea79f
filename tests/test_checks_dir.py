"""--checks-dir: programs as checks, through the real command; whatever they do, the report says what was wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight_checks import CATALOGUE as OURS
from trainer_agent.catalogue import list_checks
from trainer_agent.errors import FatalError
from trainer_agent.executable_checks import add_programs
from trainer_agent.process import is_alive

pytestmark = pytest.mark.lab

EXAMPLES = Path(__file__).parents[1] / "examples" / "checks"
PASSES = """echo '{"message": "fine"}'"""


@pytest.fixture
def folder(tmp_path):
    """A directory of checks as an administrator would make it."""
    made = tmp_path / "checks"
    made.mkdir(mode=0o755)
    return made


@pytest.fixture
def put(folder):
    """A function that writes a program into it: a shell script, unless it has a first line of its own."""

    def write(name, text=PASSES, mode=0o755):
        file = folder / name
        file.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        file.chmod(mode)
        return file

    return write


@pytest.fixture
def agent(folder):
    """The program, told of the directory."""

    def run(command, *args, **environ):
        argv = [sys.executable, "-m", "trainer_agent", command, "--checks-dir", str(folder), *args]
        known = {**os.environ, **environ}
        return subprocess.run(argv, env=known, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture
def result(agent):
    """Run one check of the directory and return (exit code, its row of the report)."""

    def run(name, *args, **environ):
        done = agent("preflight", "--checks", name, "--output", "json", *args, **environ)
        (row,) = json.loads(done.stdout)["checks"]
        return done.returncode, row

    return run


def logged(done):
    return [json.loads(line) for line in done.stderr.splitlines()]


def names(*folders):
    return list(add_programs(list_checks(), map(str, folders)))[len(OURS) :]


def test_executable_files_are_checks_after_ours_by_name(folder, put):
    put("widget_count.py")
    put("disk-worn.sh")
    put("plain")
    put(".hidden.sh")
    for backup in ("disk-worn.sh~", "disk-worn.sh.bak", "disk-worn.rpmsave", "plain.dpkg-old", "plain.SWP"):
        put(backup)
    put("notes.txt", "#!", mode=0o644)
    (folder / "lib").mkdir(mode=0o755)
    (folder / "dangling").symlink_to("nowhere")

    assert ["disk-worn", "plain", "widget-count"] == names(folder)


def test_a_config_map_is_a_directory_of_checks(folder):
    """The kubelet mounts links to a hidden directory that it replaces as a whole."""
    data = folder / "..2026_11_21"
    data.mkdir(mode=0o755)
    (data / "widgets.sh").write_text(f"#!/bin/sh\n{PASSES}\n")
    (data / "widgets.sh").chmod(0o755)
    (folder / "..data").symlink_to(data.name)
    (folder / "widgets.sh").symlink_to("..data/widgets.sh")

    assert ["widgets"] == names(folder)
    assert "widgets" == add_programs({}, [str(folder)])["widgets"].load().name


def test_several_directories_by_variable(folder, put, tmp_path):
    """Separated by colons, as paths are; `checks` reads the variable of `preflight`."""
    put("one.sh")
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    (other / "two.sh").write_text(f"#!/bin/sh\n{PASSES}\n")
    (other / "two.sh").chmod(0o755)
    environ = {**os.environ, "TRAINER_AGENT_PREFLIGHT_CHECKS_DIR": f"{folder}:{other}"}

    def run(*words):
        argv = [sys.executable, "-m", "trainer_agent", *words]
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=True).stdout

    assert ["one", "two"] == [line.split()[0] for line in run("checks").splitlines()][-2:]
    assert ["one", "two"] == [
        c["name"] for c in json.loads(run("preflight", "--checks", "one,two", "--output", "json"))["checks"]
    ]


def test_the_smallest_check_is_one_line(put, result):
    put("widgets.sh", """echo '{"message": "3 widgets"}'""")

    code, row = result("widgets")

    wanted = {"status": "pass", "message": "3 widgets", "findings": [], "measurements": {}, "action": "continue"}
    assert (0, wanted) == (code, {key: row[key] for key in wanted})


def test_a_finding_counts_as_one_of_ours_does(put, result):
    answer = {
        "message": "2 widgets",
        "findings": [
            {"code": "widgets-few", "message": "2 widgets, wanted 3", "hint": "buy one", "evidence": {"found": 2}},
            {"code": "widgets-old", "severity": "warning", "message": "they are old"},
        ],
        "measurements": {"widgets": 2},
    }
    put("widgets.sh", f"echo '{json.dumps(answer)}'")

    code, row = result("widgets")

    few = {
        "code": "widgets-few",
        "severity": "error",
        "message": "2 widgets, wanted 3",
        "hint": "buy one",
        "evidence": {"found": 2},
    }
    assert (20, "fail", "reschedule") == (code, row["status"], row["action"])
    assert (few, "widgets-old", {"widgets": 2}) == (row["findings"][0], row["findings"][1]["code"], row["measurements"])


@pytest.mark.parametrize(
    "text, what",
    [
        ("exit 3", "it ended with exit code 3, wanted 0 and one JSON object, also for a failure"),
        ("echo 'no widget driver' >&2; exit 3", "also for a failure; its last words: no widget driver"),
        ("""echo '{"message": "m"}'; exit 1""", "it ended with exit code 1, wanted 0"),
        ("kill -SEGV $$", "it was killed by signal 11"),
        ("# trainer-agent: timeout=0.5\nsleep 1000", "no answer within 0.5 s"),
        ("# trainer-agent: timeout=0.5\ntrap '' TERM; while :; do sleep 1000; done", "no answer within 0.5 s"),
        ("yes", "it wrote more than 1 MiB to standard output"),
        ("printf '\\377'", "it printed bytes that are not UTF-8"),
        ("cat", "it printed nothing, wanted one JSON object"),
        ("kill -9 $(cut -d' ' -f4 /proc/$$/stat); sleep 9", "widgets.sh: its guard was killed. It says"),
        ("#!/no/such/interpreter", "cannot be started: No such file or directory; wanted a first line such as"),
    ],
)
def test_a_program_that_breaks_is_an_error_and_says_nothing_about_the_node(put, result, text, what):
    file = put("widgets.sh", text)

    code, row = result("widgets")

    assert (10, "error", []) == (code, row["status"], row["findings"])
    assert f"{file}" in row["message"]
    assert what in row["message"]
    assert row["message"].endswith("It says nothing about the node; --skip widgets leaves it out")


def test_a_program_without_an_interpreter_cannot_be_started(folder, result):
    (folder / "widgets").write_text(PASSES)
    (folder / "widgets").chmod(0o755)

    assert (
        "widgets cannot be started: Exec format error; wanted a first line such as #!/bin/sh"
        in result("widgets")[1]["message"]
    )


def test_nothing_of_it_is_left_running(put, result, tmp_path):
    """Not what it forked, not what made itself a session of its own, also when it answers well."""
    pids = tmp_path / "pids"
    put(
        "widgets.sh",
        f"setsid sh -c 'echo $$ >>{pids}; exec sleep 1000' &\nsleep 1000 & echo $! >>{pids}\n"
        f"while [ $(wc -l <{pids}) -lt 2 ]; do :; done\n{PASSES}",
    )

    assert "pass" == result("widgets")[1]["status"]
    assert [] == [pid for pid in map(int, pids.read_text().split()) if is_alive(pid)]


def test_it_is_told_what_the_job_is(put, result):
    put(
        "widgets.sh",
        """# trainer-agent: timeout=7
printf '{"message": "%s"}' "$(env | grep ^TRAINER_AGENT_CHECK_ | sort | tr '\\n' ' ')$WIDGETS" """,
    )
    job = {"PET_NNODES": "4", "PET_NODE_RANK": "2", "PET_NPROC_PER_NODE": "1"}

    _, row = result("widgets", "--profile", "deep", WIDGETS="own", **job)

    told = dict(word.partition("=")[::2] for word in row["message"].split() if "=" in word)
    assert {
        "NAME": "widgets",
        "TIMEOUT_S": "7",
        "PROFILE": "deep",
        "NPROC": "1",
        "NODE_RANK": "2",
        "NNODES": "4",
        "ACCELERATORS": told["TRAINER_AGENT_CHECK_ACCELERATORS"],  # of the machine of this test
        "ACCELERATOR_COUNT": told["TRAINER_AGENT_CHECK_ACCELERATOR_COUNT"],
    } == {key.removeprefix("TRAINER_AGENT_CHECK_"): value for key, value in told.items()}
    assert row["message"].endswith(" own")


def test_the_header_sets_what_the_decorator_does(folder, put):
    header = """# trainer-agent: timeout=30 profile=standard alone=15 question="Are there enough widgets?" """
    put("widgets.sh", header)

    check = add_programs({}, [str(folder)])["widgets"].load()

    assert ("Are there enough widgets?", "standard", 15.0, 33.0) == (
        check.question,
        check.profile,
        check.alone_s,
        check.timeout_s,
    )


@pytest.mark.parametrize(
    "header",
    [
        "timeout=soon",
        "timeout=0",
        "timeout=99999",
        "profile=slow",
        "retries=3",
        "timeout",
        'question="Open',
        "question=",
    ],
)
def test_a_header_that_is_wrong_is_an_error_with_what_is_right(put, result, header):
    put("widgets.sh", f"# trainer-agent: {header}")

    code, row = result("widgets")

    assert (10, "error") == (code, row["status"])
    assert f"its header '# trainer-agent: {header}' is wrong: " in row["message"]


@pytest.mark.parametrize("name", ["Widget Count.sh", "widgets!.sh", "größe.sh", "a.b.sh", "-x.sh"])
def test_a_name_that_cannot_be_one_of_a_check_is_an_error(put, agent, name):
    """It is in the report, as a check that was meant to run and did not must not be overlooked."""
    put(name)

    done = agent("preflight", "--skip", ",".join(OURS), "--output", "json")

    row = next(c for c in json.loads(done.stdout)["checks"] if c["status"] == "error")
    assert (10, True) == (
        done.returncode,
        "its file name becomes the check's, wanted lower case such as" in row["message"],
    )


def test_names_of_ours_cannot_be_taken(put, agent):
    put("shm.sh")

    done = agent("preflight", "--checks", "shm", "--output", "json")

    assert "fine" != json.loads(done.stdout)["checks"][0]["message"]
    assert ["a check with this name exists already, the later one is ignored"] == [
        line["event"] for line in logged(done)
    ]


def test_a_script_that_is_not_executable_is_told_of(put, agent):
    file = put("widgets.sh", mode=0o644)

    done = agent("checks")

    (warning,) = logged(done)
    assert str(file) == warning["file"]
    assert "chmod +x" in warning["event"]


@pytest.mark.parametrize("place", ["", "missing", "file"])
def test_a_directory_that_is_none_stops_everything(agent, folder, place):
    """Nobody should believe that its checks ran."""
    (folder / "file").write_text("")

    done = agent("preflight", "--checks-dir", str(folder / place) if place else "/proc/none")

    (error,) = logged(done)
    assert (30, "checks-dir-unreadable", "") == (done.returncode, error["code"], done.stdout)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_programs_that_anybody_may_replace_are_not_run(agent, put, folder, tmp_path, mode):
    put("widgets.sh", f"touch {tmp_path}/ran")
    folder.chmod(mode)

    done = agent("preflight", "--checks", "widgets")

    (error,) = logged(done)
    assert (30, "checks-dir-untrusted") == (done.returncode, error["code"])
    assert f"everybody may write {folder} (mode {mode:o})" in error["event"]
    assert not (tmp_path / "ran").exists()


def test_nor_below_a_directory_that_anybody_may_write(put, folder):
    put("widgets.sh")
    folder.parent.chmod(0o777)

    with pytest.raises(FatalError, match=f"everybody may write {folder.parent} "):
        names(folder)


def test_nor_a_single_file_that_anybody_may_write(put, result):
    file = put("widgets.sh", mode=0o777)

    assert f"everybody may write {file} (mode 777)" in result("widgets")[1]["message"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("owner, why", [((65534, 0), "belongs to user 65534"), ((0, 7), "group 7 may write")])
def test_root_runs_only_what_is_roots(put, folder, owner, why):
    put("widgets.sh")
    os.chown(folder, *owner)
    folder.chmod(0o775)

    with pytest.raises(FatalError, match=f"{why}.*, and this is root"):
        names(folder)


def test_what_is_mounted_read_only_needs_no_modes(folder, put):
    """The kubelet mounts a ConfigMap with mode 777, and nobody in the pod may write there."""
    put("widgets.sh", mode=0o777)
    folder.chmod(0o777)
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
    own = ["unshare", *(["--user", "--map-root-user"] if os.geteuid() else []), "--mount", "sh", "-c", script, "sh"]
    if subprocess.run([*own, folder, "true"], capture_output=True, timeout=60, check=False).returncode:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no mount namespace can be made here")

    argv = [sys.executable, "-m", "trainer_agent", "preflight", "--checks-dir", str(folder), "--checks", "widgets"]
    done = subprocess.run([*own, folder, *argv], capture_output=True, text=True, timeout=60, check=False)

    assert (0, True) == (done.returncode, "PASS   widgets  fine" in done.stdout), done.stderr


def test_choices_take_their_names(put, agent):
    put("widgets.sh", """echo '{"message": "2 widgets", "status": "fail"}'""")

    def status(*words):
        done = agent("preflight", "--checks", "widgets", "--output", "json", *words)
        return done.returncode, json.loads(done.stdout)["checks"][0]["status"]

    assert [(20, "fail"), (10, "warn"), (0, "skip")] == [
        status(),
        status("--ignore", "widgets"),
        status("--skip", "widgets"),
    ]


def test_it_is_listed_and_explained(put, agent, folder):
    put("widgets.sh", """# trainer-agent: question="Are there enough widgets?" alone=4""")

    assert agent("checks").stdout.splitlines()[-1].split(maxsplit=1) == [
        "widgets",
        f"Are there enough widgets? ({folder})",
    ]
    explained = agent("checks", "widgets", "--output", "json")
    assert ("widgets", str(folder), 4.0, []) == tuple(
        json.loads(explained.stdout)[key] for key in ("name", "provider", "alone_s", "rules")
    )


@pytest.mark.parametrize("file", sorted(EXAMPLES.iterdir()), ids=lambda file: file.name)
def test_the_examples_run(file, agent):
    check = add_programs({}, [str(EXAMPLES)])[file.stem.replace("_", "-")].load()

    words = ["--checks-dir", str(EXAMPLES), "--checks", check.name, "--output", "json"]
    done = agent("preflight", *words, SCRATCH_WANTED_MIB="1")

    assert check.question.endswith("?")
    assert json.loads(done.stdout)["checks"][0]["status"] in ("pass", "fail")  # fail: a machine check of this machine
