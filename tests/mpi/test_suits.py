"""Which jobs are MPI's."""

import os
import shlex
import time
from pathlib import Path

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.mpi.settings import INJECTED
from trainer_agent.mpi.suits import (
    NAMED,
    READ_BYTES,
    finds_mpirun,
    is_mpi,
    is_mpirun,
    refuse_hostfile,
    starts_mpirun_itself,
)

OPENMPI = {"OMPI_MCA_orte_default_hostfile": INJECTED}
MPICH = {"HYDRA_HOST_FILE": INJECTED}


@pytest.mark.skipif(Path(INJECTED).exists(), reason="this machine has a hostfile")
@pytest.mark.parametrize(
    "environ, line, expected",
    [
        (OPENMPI, "train.py", True),
        (OPENMPI, "mpirun train", True),
        (MPICH, "./app", True),
        ({**MPICH, "K_MPI_JOB_ROLE": "launcher"}, "./app", True),
        ({**MPICH, "K_MPI_JOB_ROLE": "worker"}, "./app", False),
        ({}, "train.py", False),
        ({}, "mpirun train", False),
        ({}, "mpirun -np 2 --hostfile h train", True),
        ({}, "/opt/bin/mpiexec -machinefile h train", True),
        ({}, "mpirun --new --hostfile h train", True),
        ({}, "train --hostfile h", False),
        ({"OMPI_MCA_plm_rsh_args": "-v"}, "train.py", False),
    ],
)
def test_is_mpi(environ, line, expected):
    """A controller's hostfile, or an mpirun with one; a machine with an MPI and no hosts is no MPI job."""
    assert expected == is_mpi(line.split(), environ)


@pytest.mark.parametrize(
    "environ, line, expected",
    [
        ({}, "train.py", True),
        ({}, "mpirun train", True),
        ({}, "horovodrun train.py", False),
        ({"K_MPI_JOB_ROLE": "worker"}, "train.py", False),
    ],
)
@pytest.mark.parametrize("by_option", [True, False])
def test_a_hostfile_of_the_user(environ, line, expected, by_option):
    """By option or variable: who names one wants the command on all its hosts."""
    option, variable = ("h", {}) if by_option else (None, {NAMED: "h"})
    assert expected == is_mpi(line.split(), environ | variable, hostfile=option)


@pytest.mark.parametrize(
    "words, expected",
    [
        (("bash", "-c", "cat >f <<E\nE\nmpirun -np 2 python f"), True),
        (("/bin/sh", "-ec", "exec /opt/bin/mpiexec -n 2 app"), True),
        (("bash", "-c", "python train.py --launcher=mpirun"), False),
        (("bash", "-c", "python train.py"), False),
        (("python", "-c", "mpirun x"), False),
        (("bash", "-euxo", "pipefail", "-c", "cd /app && OMP_NUM_THREADS=2 timeout 2h mpirun app"), True),
        (("bash", "-c", "if ! command -v mpirun; then echo 'start with mpirun -np 2'; fi; python train.py"), False),
        (("bash", "-c", "pip install deepspeed && python train.py --deepspeed ds.json"), False),
        (("bash", "-c", "deepspeed train.py"), True),
        (("env", "X=1", "mpirun", "app"), True),
        (("env", "-i", "X=1", "bash", "-c", "mpirun app"), True),
        (("env", "X=1", "python", "train.py"), False),
        (("env",), False),
        (("timeout", "2h", "mpirun", "app"), True),
        (("timeout", "-s", "KILL", "2h", "bash", "-c", "mpirun app"), True),
        (("env", "-u", "X", "mpirun", "app"), True),
        (("tini", "--", "mpirun", "app"), True),
        (("su", "mpiuser", "-c", "cd /app && X=1 mpirun app"), True),
        (("/usr/bin/horovodrun", "-np", "4", "python", "train.py"), True),
        (("deepspeed", "train.py"), True),
        (("bash",), False),
        (("bash", "/no/such/file"), False),
    ],
)
def test_a_shell_that_starts_mpirun_itself(words, expected):
    """One on every rank would be too many."""
    assert expected == starts_mpirun_itself(words)
    assert expected != is_mpi(words, OPENMPI)


@pytest.mark.parametrize(
    "line",
    [
        *("numactl --interleave=all mpirun app", "numactl -N 0 -m all mpirun app", "taskset -c 0-3 mpirun app"),
        *("sudo -E -u mpiuser mpirun app", "sudo -u mpiuser -- bash -c 'mpirun app'", "gosu mpiuser mpirun app"),
        *("runuser -u mpiuser -- mpirun app", "su-exec mpiuser mpirun app", 'su - mpiuser -c "cd /app; mpirun app"'),
        *(
            "unbuffer mpirun app",
            "strace -f -o log mpirun app",
            "srun -n 1 --mpi pmix mpirun app",
            "chrt -f 9 mpirun app",
        ),
        *(
            "timeout -s KILL 2h mpirun app",
            "timeout ${LIMIT:-2h} mpirun app",
            "stdbuf -o L mpirun app",
            "$SUDO mpirun app",
        ),
        *("env -u FOO mpirun app", "nice -n 10 ionice -c 2 mpirun app", "setpriv --reuid mpiuser mpirun app"),
        *('OPTS="a b" mpirun app', 'X="$(hostname -i | cut -d" " -f1)" mpirun app', "N=$((2 * 3)) mpirun -np $N app"),
        *(">log mpirun app", '>"my log" 2>&1 mpirun app', "exec > >(tee log) 2>&1; mpirun app"),
        *(
            'echo " # x"; mpirun app',
            "[ $# -gt 0 ] && mpirun app",
            "find . -exec ls {} \\; ; mpirun app",
            "cat <<E\nit's\nE\nmpirun app",
        ),
        *('OUT="$(mpirun app | tail -1)"', "OUT=`mpirun app`", 'eval "mpirun app"', "bash -c 'set -e\nmpirun app'"),
        *("mpirun --version; mpirun app", "mpirun --version app"),
        *("SHELL=/bin/bash mpirun app", "A=/usr/bin/env B[0]=/o/su mpirun app", "env SHELL=/bin/bash mpirun app"),
        *("MPIRUN=/opt/bin/mpirun; $MPIRUN app", 'RUN="$X/mpirun -np 2"; exec ${RUN} app', "$(which sudo) mpirun app"),
        *("SUDO=$(which sudo); $SUDO mpirun app", "SUDO=; $SUDO mpirun app", 'RUN="mpirun app"; eval "$RUN"'),
        *('CMD="cd /app && mpirun app"; eval "$CMD"', "CMD='( mpirun app ) > log 2>&1'; eval $CMD"),
        *('CMD="source e.sh; mpirun app"; bash -lc "$CMD" | tee log', 'CMD="cd / && mpirun app"; su x -c "$CMD"'),
        *('RUN="mpirun -np 2"; su x -c "cd /app && $RUN app"', 'RUN="mpirun -np 2"; CMD="$RUN app"; eval "$CMD >log"'),
        *('CMD="mpirun -np 2"; CMD="${CMD} app"; $CMD', 'RUN=; [ $# = 0 ] || RUN="mpirun -np 2"; $RUN app'),
        *('RUN=; [ -n "$DRY" ] && RUN=echo; $RUN mpirun app', "RUN=; [ $DRY ] && RUN=echo; M=mpirun; $RUN $M app"),
        *('RUN="conda run -n hvd"; $RUN mpirun app', "WRAP=setsid; $WRAP mpirun app", "${WRAP:-setsid} mpirun app"),
        *('CMD="python p.py"; $CMD; CMD="mpirun -np 2 app"; $CMD', 'C="mpirun app"; eval "$C"; C="rm log"; eval "$C"'),
        *('CMD="python t.py"; CMD="mpirun -np 4 -x LD_PATH $CMD"; exec $CMD', "f() { $M app; }; M=ls; M=mpirun; f"),
        *('CMD="cd /app;"; CMD="$CMD mpirun app"; eval $CMD', 'CMD="source e.sh"; CMD="$CMD && mpirun x"; eval "$CMD"'),
        *("M=${M:-}; if [ -z $M ]; then M=mpirun; fi; $M app", "M=$1; [ $M ] || M=mpirun; $M app"),
        *(
            "conda run -n hvd --live-stream mpirun app",
            "uv run -- mpirun app",
            "exec /opt/conda/bin/conda run mpirun app",
        ),
        *("function f { mpirun app; }; f", "function f() {\nmpirun app\n}\nf"),
        *('M=mpirun; L="$M"; $L app', 'C="mpirun app"; D="$C"; eval "$D"', "M=mpirun; L=${M}; L=${L:-}; $L app"),
        *("M=mpirun; if [ $N ]; then L=$M; else L=; fi; $L app", 'M=mpirun; C=$M; C="$C -n 2"; $C app'),
        *("if [ $N ]; then if [ $M ]; then :; fi; fi; M=ls; M=mpirun; $M app", "f() { M=mpirun; }; f; $M app"),
        *("${MPIRUN:-mpirun} app", "M=${M:=/opt/bin/mpirun}; $M app", 'RUN=${RUN-"mpirun -np 2"}; $RUN app'),
        *("$(which mpirun) app", 'M="$(command -v mpirun 2>/dev/null)"; exec "$M" app', "M=`which mpirun`; $M app"),
        *(
            'su x -c "A=1 mpirun app"',
            "eval 'A=1 mpirun app'",
            "# torchrun \\\nmpirun app",
            "set \\\n# -e \\\nmpirun app",
        ),
        *(
            'ls "a \\\n # b" && mpirun app',
            "ls 'a \\\n # b'; mpirun app",
            ">log \\\n mpirun app",
            'OUT="\\\n$(mpirun app)"',
        ),
    ],
)
def test_a_line_that_starts_mpirun(line):
    """Whatever stands before it."""
    assert starts_mpirun_itself(("bash", "-c", line))


@pytest.mark.parametrize(
    "line",
    [
        *("echo mpirun", "which mpirun", "command -v mpirun", "pip install mpirun", "grep mpirun x", "ls >mpirun"),
        *("conda install mpirun", "conda create -n x mpirun", "poetry add deepspeed", "uv run python t.py mpirun"),
        *("sudo -E ls mpirun", "sudo -H pip install deepspeed", "nohup apt-get install mpirun", "sudo -E"),
        *("exec python3 train.py --strategy deepspeed", "env -u X python3 train.py --launcher mpirun"),
        *("$PYTHON -u train.py --strategy deepspeed", "timeout 2h /no/such/python train.py --strategy deepspeed"),
        *(
            'echo "before; mpirun app"',
            "echo `# mpirun app`",
            "python3 train.py # mpirun app",
            'eval "$@"',
            'exec "$@"',
        ),
        *("mpirun --version", "deepspeed --version >/dev/null 2>&1", "if mpirun -h | head -1; then :; fi"),
        *("echo \\; mpirun app", 'V="$(mpirun -V)"', "horovodrun --check-build", "mpirun -version", "mpirun -help"),
        *("CONFIG_DIR=conf/deepspeed; python t.py", "X=/o/deepspeed python t.py", "export X=/o/deepspeed"),
        *("mpirun=/usr/bin/mpirun python t.py", "M=/usr/bin/mpirun; ls $M", "env X=/o/deepspeed python t.py"),
        *("X+=/o/deepspeed", "X[1]=/o/deepspeed", "X='/o/my deepspeed' python t.py", "X=/o/deepspeed; ls $X; $X/t.py"),
        *(
            'X="--strategy deepspeed" python t.py',
            'X="now: mpirun app"; ls "$X"',
            'env -u Y X="a mpirun b" python t.py',
        ),
        *("L=python; [ $DS ] && L=deepspeed; $L train.py", "L=deepspeed; [ $DS ] || L=python; $L train.py"),
        *('CMD="python t.py"; if [ $N ]; then CMD="mpirun -np 8 $CMD"; fi; $CMD', "L=${L:-python}; $L deepspeed.py"),
        *("L=deepspeed; for a in $@; do L=python; done; $L train.py", "M=mpirun; M=ls; $M"),
        *("M=mpirun; M=$PYTHON; $M t.py", 'T="torchrun t.py"; C="mpirun t.py"; if [ $T ]; then C="$T"; fi; $C'),
        "L=ls; [ $D ] && { ls; L=deepspeed; }; $L",
        "L=ls; [ $D ] &&\n  L=mpirun\n$L",
        "L=ls; ls || \n L=mpirun; $L",
        "L=ls; { for h in $H; do echo $h; done; } >h; if [ $D ]; then L=deepspeed; fi; $L",
        "L=ls; if [ $A ]; then if [ $B ]; then N=1; fi; fi; if [ $D ]; then L=deepspeed; fi; $L",
        "L=ls; for a in $@; do case $a in d) N=1;; esac; done; if [ $D ]; then L=deepspeed; fi; $L",
        "L=ls; cat <<E\ndone }\ndone\nE\nif [ $D ]; then L=deepspeed; fi; $L",
        "L=ls; select d in a b; do L=mpirun; done; $L",
        *("S=${S:-deepspeed}; python t.py --strategy $S", 'M=$(which mpirun); echo "$M"', "M=mpirun; $M --version"),
        *('[ -x "$(command -v mpirun)" ] && echo yes', 'CMD="cd /app && python t.py --x deepspeed"; eval "$CMD"'),
        *('su x -c "ls /opt/deepspeed"', "ls \\\n mpirun app", 'su x -c "A=1 ls mpirun"'),
    ],
)
def test_a_line_that_starts_no_mpirun(line):
    """Its name may be an argument of anything, and a question for its version starts no rank."""
    assert not starts_mpirun_itself(("bash", "-c", line))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("set -e\necho preparing\nmpirun -np 2 app", True),
        ("NP=2\nexec ${MPI_HOME}/bin/mpirun \\\n  -np $NP app", True),
        ("for n in 1 2; do\n  horovodrun -np 2 app\ndone", True),
        ("bash -c 'mpirun app'", True),
        ("# torchrun --nproc 4 train.py \\\nmpirun -np 4 app", True),
        ("numactl -N 0 mpirun app", True),
        ("mpirun --version\ndeepspeed --help | head -1\npython train.py", False),
        ("# mpirun starts this: mpirun run.sh\npython train.py", False),
        ("CONFIG=/conf/deepspeed\npython train.py --deepspeed $CONFIG/zero3.json", False),
        ("a" * (READ_BYTES + 1) + "\nmpirun app", False),
    ],
)
def test_a_script_that_starts_mpirun_itself(tmp_path, monkeypatch, text, expected):
    """The file that a shell is given is read; so is one that is started by its own name."""
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(f"#!/usr/bin/env bash\n{text}")
    Path("run.sh").chmod(0o755)
    lines = [("bash", "run.sh"), ("bash", "-ex", "-o", "pipefail", "run.sh", "mpirun"), ("./run.sh", "x")]
    assert [expected] * 3 == [starts_mpirun_itself(line) for line in lines]


@pytest.mark.parametrize(
    "line",
    [
        "cd app && ./run.sh",
        "cd {0} && cd app; bash -e run.sh 2>&1 | tee log",
        "{0}/app/run.sh --epochs 3",
        "pip install -q x && source app/run.sh",
        "export A=b\n. ./app/run.sh",
        "nice {0}/app/run.sh",
    ],
)
@pytest.mark.parametrize("started, expected", [("mpirun app", True), ("python train.py", False), ("bash x.sh", False)])
def test_a_script_that_a_line_starts(tmp_path, monkeypatch, line, started, expected):
    """It is read as if it were the command; what it starts in its turn is not."""
    monkeypatch.chdir(tmp_path)
    Path("app").mkdir()
    Path("x.sh").write_text("mpirun app")
    Path("app/x.sh").write_text("mpirun app")
    Path("app/run.sh").write_text(f"#!/bin/sh\n{started}\n")
    Path("app/run.sh").chmod(0o755)
    assert expected == starts_mpirun_itself(("bash", "-c", line.format(tmp_path)))


@pytest.mark.parametrize(
    "text", ["$(" * 20000 + ")" * 20000, 'a="' + "x " * 10000 + '"; ' + "$a " * 10000, "a=" * 30000, "${a:-" * 10000]
)
def test_a_script_that_stands_for_far_more_than_it_is(text):
    """It is judged in a moment all the same."""
    began = time.process_time()
    assert not starts_mpirun_itself(("bash", "-c", text))
    assert time.process_time() - began < 30  # minutes, before anything bounded it


def test_a_script_that_can_be_read_only_once(tmp_path):
    """It is left to the shell."""
    os.mkfifo(tmp_path / "pipe")
    assert not starts_mpirun_itself(("bash", str(tmp_path / "pipe")))


def test_a_program_that_is_no_script_of_a_shell(tmp_path):
    """Whatever stands in it."""
    program = tmp_path / "run"
    program.write_text("#!/usr/bin/python3\nmpirun = 1\n")
    program.chmod(0o755)
    assert not starts_mpirun_itself((str(program),))


@pytest.mark.parametrize(
    "line, expected",
    [
        ("env X=1 mpirun app", True),
        ("timeout 2h bash -c 'mpirun app'", True),
        ("bash -c 'horovodrun app'", True),
        ("env X=1 horovodrun app", False),
        ("deepspeed app", False),
        ("env X=1 app", False),
        ("mpirun app", False),
    ],
)
def test_what_finds_mpirun_on_path(line, expected):
    """It is for the wrapper that may lie there; horovodrun and deepspeed give mpirun, if any, hosts of their own."""
    assert expected == finds_mpirun(shlex.split(line))


def refused(line, environ, **settings):
    """Return message and hint of the error for a hostfile that nothing would read."""
    with pytest.raises(FatalError) as caught:
        refuse_hostfile("h", line.split(), environ=environ, **({"runtime": "torch", "launcher": "auto"} | settings))
    assert "hostfile-unused" == caught.value.code
    return caught.value.message, caught.value.hint


def test_a_torchrun_of_which_no_flag_says_who_the_nodes_are():
    """Each of the words that the hint names is enough; not so where a controller says who the nodes are."""
    message, hint = refused("torchrun --nproc-per-node 2 eval.py", {NAMED: "h"})
    assert f"{NAMED}=h, and no flag of the torchrun says who the nodes are" == message
    assert "`torchrun --standalone` or `--nnodes 1` for this node alone" in hint
    for flags in ("--standalone", "--nnodes 1", "--nnodes 2 --rdzv-endpoint n-0:1"):
        line = f"torchrun {flags} --nproc-per-node 2 eval.py"
        refuse_hostfile("h", line.split(), environ={NAMED: "h"}, runtime="torch", launcher="auto")
    environ = {NAMED: "h", "PET_NNODES": "2", "PET_MASTER_ADDR": "n-0"}
    for line in ("torchrun --nproc-per-node 2 eval.py", "torchrun --standalone eval.py"):
        assert "leave it out, or give --launcher mpirun" == refused(line, environ)[1]


@pytest.mark.parametrize(
    "line, environ, settings, message, hint",
    [
        ("torchrun --standalone a.py", {}, {}, "the runtime is torch", "leave it out"),
        ("a.py", {}, {"launcher": "python"}, "--launcher=python reads none", "leave out --launcher"),
        ("deepspeed a.py", {}, {}, "the command starts mpirun itself", f"set {NAMED} instead"),
        ("a.py", {NAMED: "h"}, {"runtime": "mpi"}, "a worker of an MPI job", "where the launcher is"),
    ],
)
def test_a_hostfile_that_nothing_would_read(line, environ, settings, message, hint):
    """The reason decides what to do; the mpirun that a command starts itself reads the variable."""
    found = refused(line, environ, **settings)
    assert (True, True) == (message in found[0], hint in found[1]), found
    refuse_hostfile("h", ["deepspeed"], environ={NAMED: "h"}, runtime="plain", launcher="auto")


@pytest.mark.parametrize(
    "word, expected", [("mpirun", True), ("/usr/bin/mpiexec.hydra", True), ("mpirun.py", False), ("", False)]
)
def test_is_mpirun(word, expected):
    """The program's name counts, wherever it lies."""
    assert expected == is_mpirun((word, "x"))
