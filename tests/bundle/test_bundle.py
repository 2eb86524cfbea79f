"""The bundle that `install` makes, started in the ways that images start it."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_agent import __version__
from trainer_agent.bundle import agent_python, home, own_authorities, stored_authorities, training_python
from trainer_agent.wrappers import is_wrapper

pytestmark = pytest.mark.lab

VERSION = f"trainer-agent, version {__version__}\n"
POISON = "raise SystemExit('the image\\'s module was imported')\n"


@pytest.fixture(scope="module")
def python(bundle):
    """Return the bundle's interpreter."""
    return next(bundle.glob("lib-*/bin/python3"))


@pytest.fixture
def hostile(tmp_path):
    """Return a directory of modules and libraries that ours must not meet."""
    for module in ("signal", "ssl", "click", "site", "encodings", "os", "sitecustomize"):
        (tmp_path / f"{module}.py").write_text(POISON)
    for library in ("libz.so.1", "libssl.so.3", "libpthread.so.0", "libm.so.6"):
        (tmp_path / library).write_text("no library")
    return tmp_path


def test_all_of_the_program_is_there(agent, bundle):
    """Its commands run; the checks are found by their entry point."""
    listed = agent("checks")

    assert (0, VERSION) == (agent("--version").returncode, agent("--version").stdout)
    assert listed.stdout.startswith("environment ")
    assert listed.stdout.count("\n") > 20
    assert not (bundle / "bin/python3").exists()  # it would come before the image's on PATH


def test_everything_imports(python):
    """Also what is imported late: extension modules with libraries of their own."""
    modules = "ssl,hashlib,sqlite3,lzma,bz2,zlib,ctypes,_awscrt,awscrt.checksums,hf_xet,psutil,pynvml,rich.console"
    code = f"import {modules},urllib3,json,trainer_agent.commands.run;" + "from trainer_agent import testing"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env={}, timeout=60, check=False)

    assert (0, "") == (done.returncode, done.stderr)


def test_nothing_of_the_hosts_python_is_used(python, bundle):
    """Every module and every library comes from the bundle."""
    code = (
        "import sys, ssl, psutil, click, trainer_agent.cli, re\n"
        "print(*(m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)), sep='\\n')\n"
        "print(*(line.split(maxsplit=5)[5].strip() for line in open('/proc/self/maps') if '.so' in line), sep='\\n')"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env={}, timeout=60, check=True)

    assert {True} == {Path(line).is_relative_to(bundle.resolve()) for line in done.stdout.splitlines()}


def test_a_hostile_image_changes_nothing(agent, hostile):
    """Variables, directories and libraries of the image stay out of our process, and its children get them."""
    environ = {
        "PYTHONPATH": str(hostile),
        "PYTHONHOME": "/nowhere",
        "PYTHONPLATLIBDIR": "nowhere",
        "PYTHONSTARTUP": str(hostile / "os.py"),
        "PYTHONSAFEPATH": "",
        "LD_LIBRARY_PATH": f"{hostile}:/more",
        "CDPATH": "/",
    }
    done = agent("--version", cwd=hostile, **environ)
    # Its own libraries would not load with these.
    environ["LD_LIBRARY_PATH"] = "/more"
    shown = agent("launch", "--exec", "--launcher", "python", "--", "env", cwd=hostile, **environ)
    got = dict(line.split("=", 1) for line in shown.stdout.splitlines())

    assert (0, VERSION) == (done.returncode, done.stdout)
    assert environ == {name: value for name, value in got.items() if name in environ}


@pytest.mark.parametrize(
    "cwd,words",
    [
        (".", ["./link"]),
        (".", ["ag ent/relative"]),
        (".", ["directory/bin/trainer-agent"]),
        (".", ["env", "trainer-agent"]),
        ("ag ent/bin", ["./trainer-agent"]),
        ("ag ent/bin", ["../bin/.././bin//trainer-agent"]),
        ("ag ent/bin", ["sh", "trainer-agent"]),
        ("ag ent", ["bin/trainer-agent"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else value,
)
def test_however_it_is_called(agent, bundle, tmp_path, cwd, words):
    """Its place is found through links, from a relative name and by a shell; spaces are nothing special."""
    shutil.copytree(bundle, tmp_path / "ag ent", copy_function=os.link)
    (tmp_path / "relative").symlink_to("ag ent/bin/trainer-agent")
    (tmp_path / "link").symlink_to(tmp_path / "relative")
    (tmp_path / "directory").symlink_to("ag ent")
    (tmp_path / "ag ent/relative").symlink_to("bin/trainer-agent")
    program = words[0] if "/" in words[0] else shutil.which(words[0], path=os.defpath)
    path = f"{tmp_path}/ag ent/bin:{os.defpath}"
    done = agent(*words[1:], "--version", program=program, cwd=tmp_path / cwd, PATH=path, CDPATH=f"{tmp_path}/ag ent")

    assert (VERSION, "") == (done.stdout, done.stderr)


def test_children_of_ours_start(agent, tmp_path):
    """`local` starts this program again, with its own interpreter, in a directory with a signal.py."""
    (tmp_path / "signal.py").write_text(POISON)
    words = ("local", "--nnodes", "2", "--steps", "launch", "--workdir", str(tmp_path / "w"), "--", "echo", "hello")
    done = agent(*words, cwd=tmp_path)

    assert 0 == done.returncode
    assert 2 == done.stdout.count("] hello\n")


def test_no_shell_is_left(agent):
    """The script becomes the program, so that signals for PID 1 reach it; by its name it is known."""
    done = agent("launch", "--exec", "--launcher", "python", "--", "/bin/sh", "-c", "echo $PPID")
    comm = agent(*("launch", "--supervise", "--launcher", "python", "--"), *("/bin/sh", "-c", "cat /proc/$PPID/comm"))

    assert str(os.getpid()) == done.stdout.strip()
    assert "trainer-agent\n" == comm.stdout


def test_the_training_python_is_the_images(agent, bundle, tmp_path):
    """`python`, then `python3` on PATH, but ours never as long as there is another."""
    first, second = tmp_path / "first", tmp_path / "second"
    inner = next(bundle.glob("lib-*/bin"))
    for directory, name in ((first, "python3"), (second, "python")):
        directory.mkdir()
        (directory / name).symlink_to(sys.executable)
    (first / "python").write_text("no program")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "python3").symlink_to(inner / "python3")
    words = ("launch", "--dry-run", "--launcher", "python", "--", "train.py")

    def chosen(*path):
        return agent(*words, PATH=":".join(map(str, path))).stdout.split()[0]

    assert str(second / "python") == chosen("", inner, linked, first, second)
    assert str(first / "python3") == chosen(inner, linked, first)
    assert str(inner.resolve() / "python3") == chosen(inner, linked)


def test_outside_of_a_bundle_nothing_differs():
    """The Python that runs this is the training environment's, and OpenSSL's certificates are those to trust."""
    facts = home(), training_python({"PATH": "/usr/bin"}), agent_python("other"), own_authorities()

    assert (None, sys.executable, "other", None) == facts


def test_certificates_are_the_images_then_ours(python, tmp_path):
    """Where OpenSSL finds some, it is left alone; else the image's in other places count, and then those we brought."""
    code = (
        "from trainer_agent.bundle import own_authorities, stored_authorities, AUTHORITIES, home\n"
        "import trainer_agent.bundle as b\n"
        "found = own_authorities(); b.STORES = ()\n"
        "print(found, own_authorities() == (home() / AUTHORITIES if not stored_authorities() else found))"
    )
    ours, lacking = tmp_path / "ca.pem", str(tmp_path / "nothing")
    ours.write_text("certificates")

    def asked(**environ):
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environ, timeout=60, check=True)
        return done.stdout.split()[0]

    assert "None" == asked(SSL_CERT_FILE=str(ours))
    assert str(stored_authorities()) == asked(SSL_CERT_FILE=lacking, SSL_CERT_DIR=lacking)
    assert ours == stored_authorities((lacking, str(ours)))
    assert stored_authorities((lacking,)) is None


def test_xet_gets_the_same_certificates(python, tmp_path):
    """It reads a variable, which our children do not get."""
    code = (
        "import ctypes, os; from trainer_agent.bundle import own_authorities\n"
        "from trainer_agent.initializers.hf_xet import bring_authorities; before = dict(os.environ)\n"
        "wanted = own_authorities(); bring_authorities(); getenv = ctypes.CDLL(None).getenv\n"
        "getenv.restype = ctypes.c_char_p; found = getenv(b'SSL_CERT_FILE').decode()\n"
        "print(found == str(wanted), before == dict(os.environ))"
    )
    environ = dict.fromkeys(("SSL_CERT_FILE", "SSL_CERT_DIR"), str(tmp_path / "nothing"))
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environ, timeout=60, check=True)

    assert "True True\n" == done.stdout


def test_everybody_may_use_it(bundle):
    """All is readable by all, programs can be run, and nothing has more rights than that."""
    modes = {stat.S_IMODE(p.stat().st_mode) for p in bundle.rglob("*") if p.is_file()}
    directories = {stat.S_IMODE(p.stat().st_mode) for p in (bundle, *bundle.rglob("*")) if p.is_dir()}
    programs = [*bundle.glob("bin/*"), *bundle.glob("wrappers/*"), *bundle.glob("lib-*/bin/*")]

    assert ({0o644, 0o755}, {0o755}) == (modes, directories)
    assert {0o755} == {stat.S_IMODE(p.stat().st_mode) for p in programs}


def test_every_bash_finds_the_wrappers_first_and_the_rest_as_before(bundle):
    """However often: a bash below a bash puts nothing there again."""
    env = {"PATH": "/the/image/bin:/usr/bin:/bin", "BASH_ENV": str(bundle / "bash_env")}
    words = ["bash", "-c", "command -v torchrun; bash -c 'echo $PATH'"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)

    wrappers = bundle / "wrappers"
    assert [f"{wrappers}/torchrun", f"{wrappers}:/the/image/bin:/usr/bin:/bin"] == done.stdout.splitlines()


def test_wrappers_are_known_as_ours(bundle):
    """They go through the program beside them, and `wrap` would never take one for the real program."""
    text = (bundle / "wrappers/torchrun").read_text()

    assert {"mpiexec", "mpirun", "torchrun"} == {p.name for p in (bundle / "wrappers").iterdir()}
    assert {True} == {is_wrapper(str(p)) for p in (bundle / "wrappers").iterdir()}
    assert 'exec "${me%/*}/../bin/trainer-agent" wrap torchrun "$@"\n' == text.splitlines(keepends=True)[-1]


def test_all_bytecode_is_there_and_needs_no_time_stamps(bundle):
    """An image's layers may change every time stamp, and nobody may write to them."""
    library = next(bundle.glob("lib-*/lib/python*"))
    sources = [*library.glob("*.py"), *library.glob("trainer_agent/**/*.py"), *library.glob("click/*.py")]
    compiled = [next(source.parent.glob(f"__pycache__/{source.stem}.cpython-*.pyc")) for source in sources]

    assert len(sources) > 300
    assert {bytes([1, 0, 0, 0])} == {path.read_bytes()[4:8] for path in compiled}


def test_what_nobody_needs_stays_behind(bundle):
    """No tests, no desktop, no torch, and nothing of this environment that we do not depend on."""
    library = next(bundle.glob("lib-*/lib/python*"))
    left = ("test", "idlelib", "tkinter", "ensurepip", "torch", "pytest", "site-packages", "unittest/test")

    assert [] == [name for name in left if (library / name).exists()]
