"""How many processes `launch` starts for what NVIDIA's library says, through the real loader and nvidia-ml-py."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from nvml_faults import FAULTS
from nvml_machines import h100_sxm, mig, mig_uuid, uuid

pytestmark = pytest.mark.lab

BIN = Path(sys.executable).parent
AGENT = str(BIN / "trainer-agent")
ONE_CPU = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
NOTHING, FOUR, EIGHT, TWO_INSTANCES = h100_sxm(0), h100_sxm(4), h100_sxm(), mig(instances=2)
NOT_LOADED, MISMATCH = FAULTS["not-loaded"](EIGHT, 0), FAULTS["driver-mismatch"](EIGHT, 0)
IDLE = "--nproc gpu (TRAINER_AGENT_LAUNCH_NPROC=gpu) uses all, also with dynamic allocation"
MORE_MIG = "to use more, list their UUIDs in CUDA_VISIBLE_DEVICES and set spec.trainer.numProcPerNode to their number"
NO_ANSWER = "the NVIDIA driver does not answer"
ASKS = "PET_NPROC_PER_NODE=auto asks for accelerators and none is visible here"


@dataclass(frozen=True)
class Run:
    """What a dry run came to: exit code, torchrun's words between itself and the script, and what the log said."""

    code: int
    flags: str
    level: str
    said: str
    finding: str = ""


def agent(standin, machine, *argv, env, prefix=()):
    """Run the program on a machine with the stand-in library."""
    own = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": "/tmp", **standin.environ(machine)}
    argv = [*prefix, AGENT, *argv]
    return subprocess.run(argv, env={**own, **env}, capture_output=True, text=True, check=False, timeout=30)


def dry_run(standin, machine, *options, prefix=ONE_CPU, **env):
    """Return what `launch --dry-run` decides, on one CPU unless a test says otherwise."""
    command = ["launch", "--dry-run", "--launcher", "torchrun", *options, "--", "train.py"]
    done = agent(standin, machine, *command, env=env, prefix=prefix)
    line = json.loads(done.stderr.splitlines()[-1])
    words = shlex.split(done.stdout)[1:-1]
    assert words[:1] in ([], ["--standalone"])
    return Run(
        done.returncode, " ".join(words[1:]), line["level"], line.get("reason") or line["event"], line.get("code", "")
    )


def starts(count, said, *, level="info", more=""):
    """Return the run that starts so many processes."""
    return Run(0, f"--nproc-per-node {count}{more}", level, said)


def test_auto_is_the_number_of_gpus(nvml_standin):
    """The controller leaves `auto` where it saw a request for GPUs."""
    expected = starts(8, "8 processes for PET_NPROC_PER_NODE=auto: NVML: 8 GPUs")
    assert expected == dry_run(nvml_standin, EIGHT, PET_NPROC_PER_NODE="auto")


def test_auto_without_gpus_is_a_fault(nvml_standin):
    """CPUs would be a silent hundredfold slowdown."""
    expected = Run(30, "", "error", f"{ASKS} (NVML: 0 GPUs)", "no-accelerator")
    assert expected == dry_run(nvml_standin, NOTHING, PET_NPROC_PER_NODE="auto")


def test_auto_without_gpus_may_mean_cpus_when_asked_for(nvml_standin):
    """One for each CPU that may be used."""
    why = "no accelerator is visible, and --allow-cpu-fallback is given"
    expected = starts(1, f"1 process on CPUs for PET_NPROC_PER_NODE=auto: {why}", level="warning")
    actual = dry_run(nvml_standin, NOTHING, "--allow-cpu-fallback", PET_NPROC_PER_NODE="auto")
    assert expected == actual


def test_nobody_asked_is_the_number_of_gpus(nvml_standin):
    """A TrainJob without spec.trainer has no PET_* at all."""
    expected = starts(8, "8 processes for PET_NPROC_PER_NODE not being set: NVML: 8 GPUs")
    assert expected == dry_run(nvml_standin, EIGHT)


TOO_MANY = "8 processes, not PET_NPROC_PER_NODE=16, because there are no more devices here (NVML: 8 GPUs)"


@pytest.mark.parametrize(
    "policy, expected",
    [
        ("fix", starts(8, TOO_MANY, level="warning")),
        ("strict", Run(30, "", "error", f"{TOO_MANY}, and --nproc-policy is strict", "nproc-mismatch")),
        (
            "trust",
            starts(
                16,
                f"16 processes as PET_NPROC_PER_NODE says, against our advice: {TOO_MANY}",
                level="warning",
            ),
        ),
    ],
)
def test_more_processes_than_gpus(nvml_standin, policy, expected):
    """A CPU count that the controller took for a number of processes, and what the user may do about it."""
    actual = dry_run(nvml_standin, EIGHT, "--nproc-policy", policy, PET_NPROC_PER_NODE="16")
    assert expected == actual


def test_fewer_processes_than_gpus_stay_with_a_warning(nvml_standin):
    """1 is also what a DRA claim without a CPU request becomes, so the way out is named."""
    idle = f"so 7 of 8 devices stay idle (NVML: 8 GPUs); {IDLE}"
    expected = starts(1, f"1 process as PET_NPROC_PER_NODE=1 says, {idle}", level="warning")
    assert expected == dry_run(nvml_standin, EIGHT, PET_NPROC_PER_NODE="1")


def test_the_option_gpu_uses_all_of_them(nvml_standin):
    """As the warning says."""
    expected = starts(8, "8 processes for --nproc=gpu: NVML: 8 GPUs")
    assert expected == dry_run(nvml_standin, EIGHT, "--nproc", "gpu", PET_NPROC_PER_NODE="1")


def test_as_many_as_gpus_is_fine(nvml_standin):
    """Nothing to warn about."""
    expected = starts(8, "8 processes, one for each device (NVML: 8 GPUs)")
    assert expected == dry_run(nvml_standin, EIGHT, PET_NPROC_PER_NODE="8")


def test_mig_means_one_process(nvml_standin):
    """A process sees one instance; 16 is the CPU count that the controller injects with MIG resources."""
    why = f"1 process, because a process sees one MIG instance (NVML: 2 MIG instances); {MORE_MIG}"
    expected = starts(1, why, level="warning")
    assert expected == dry_run(nvml_standin, TWO_INSTANCES, PET_NPROC_PER_NODE="16")


def test_mig_with_a_list_means_a_process_for_each(nvml_standin):
    """Each rank then sees one entry of the list as its device 0."""
    why = "2 processes, one for each MIG instance that CUDA_VISIBLE_DEVICES lists"
    listed = f"{mig_uuid(0)},{mig_uuid(1)}"
    expected = starts(2, why, more=" --virtual-local-rank")
    assert expected == dry_run(nvml_standin, TWO_INSTANCES, PET_NPROC_PER_NODE="2", CUDA_VISIBLE_DEVICES=listed)


def test_mig_by_index_is_one_instance(nvml_standin):
    """CUDA shows the first instance for the index of a GPU in MIG mode."""
    source = "NVML: 2 MIG instances, CUDA_VISIBLE_DEVICES='0'"
    expected = starts(1, f"1 process, because a process sees one MIG instance ({source})")
    assert expected == dry_run(nvml_standin, TWO_INSTANCES, PET_NPROC_PER_NODE="auto", CUDA_VISIBLE_DEVICES="0")


@pytest.mark.parametrize(
    "broken, words",
    [(NOT_LOADED, "Driver Not Loaded"), (MISMATCH, "RM has detected an NVML/RM version mismatch.")],
)
def test_a_broken_driver_with_auto_asks_for_another_node(nvml_standin, broken, words):
    """20, with NVML's own words; something asks for GPUs here, else the library may be a stray one."""
    expected = Run(20, "", "error", f"{ASKS} ({NO_ANSWER}: {words})", "gpu-driver-broken")
    assert expected == dry_run(nvml_standin, broken, PET_NPROC_PER_NODE="auto", NVIDIA_VISIBLE_DEVICES="all")


@pytest.mark.parametrize(
    "broken, words",
    [(NOT_LOADED, "Driver Not Loaded"), (MISMATCH, "RM has detected an NVML/RM version mismatch.")],
)
def test_a_broken_driver_with_a_number_is_a_warning(nvml_standin, broken, words):
    """Nobody asked for GPUs, so it may be a job for CPUs."""
    why = f"no accelerator is visible ({NO_ANSWER}: {words})"
    expected = starts(1, f"1 process as PET_NPROC_PER_NODE=1 says, on CPUs: {why}", level="warning")
    assert expected == dry_run(nvml_standin, broken, PET_NPROC_PER_NODE="1", NVIDIA_VISIBLE_DEVICES="all")


def test_a_hanging_driver_with_auto_asks_for_another_node(nvml_standin):
    """NVML gets ten seconds, in a process that can be killed."""
    expected = Run(20, "", "error", f"{ASKS} ({NO_ANSWER}: NVML gave no answer within 20 s)", "gpu-driver-broken")
    assert expected == dry_run(nvml_standin, FAULTS["hung-driver"](EIGHT, 0), PET_NPROC_PER_NODE="auto")


@pytest.mark.parametrize(
    "visible, count",
    [
        ("0,1", 2),
        ("1", 1),
        ("GPU-1", 1),
        (f"{uuid(0)},{uuid(1)}", 2),
        ("0,-1,1", 1),
        ("0,foo,1", 1),
        ("0,4,1", 1),
        ("3,2,1,0", 4),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(nvml_standin, visible, count):
    """The list ends at its first invalid entry; a UUID may be shortened."""
    processes = "1 process" if count == 1 else f"{count} processes"
    source = f"NVML: 4 GPUs, CUDA_VISIBLE_DEVICES={visible!r}"
    expected = starts(count, f"{processes} for PET_NPROC_PER_NODE=auto: {source}")
    actual = dry_run(nvml_standin, FOUR, PET_NPROC_PER_NODE="auto", CUDA_VISIBLE_DEVICES=visible)
    assert expected == actual


@pytest.mark.parametrize("visible", ["", "-1", "0,0", "4", "none", "void", "all", "GPU-", "GPU-f"])
def test_cuda_visible_devices_may_hide_all(nvml_standin, visible):
    """Nothing valid at the head of the list, or a GPU twice: CUDA shows none."""
    source = f"NVML: 4 GPUs, CUDA_VISIBLE_DEVICES={visible!r}"
    expected = Run(30, "", "error", f"{ASKS} ({source})", "no-accelerator")
    actual = dry_run(nvml_standin, FOUR, PET_NPROC_PER_NODE="auto", CUDA_VISIBLE_DEVICES=visible)
    assert expected == actual


def omp_setting(standin, machine, **env):
    """Return the row of `explain` for OMP_NUM_THREADS."""
    done = agent(standin, machine, "explain", "--output", "json", env=env, prefix=ONE_CPU)
    rows = json.loads(done.stdout)["settings"]
    return next(row for row in rows if row["setting"] == "OMP_NUM_THREADS")


def test_threads_are_the_cpus_divided_by_the_processes_and_at_least_one(nvml_standin):
    """Eight processes on one CPU."""
    effect = "CPUs divided by processes"
    expected = {"setting": "OMP_NUM_THREADS", "value": "1", "origin": "decision", "effect": effect}
    assert expected == omp_setting(nvml_standin, EIGHT, PET_NPROC_PER_NODE="auto")


def test_threads_that_the_user_chose_stay(nvml_standin):
    """Ours is a default."""
    expected = {"setting": "OMP_NUM_THREADS", "value": "3", "origin": "environment", "effect": ""}
    assert expected == omp_setting(nvml_standin, EIGHT, PET_NPROC_PER_NODE="auto", OMP_NUM_THREADS="3")


@pytest.mark.parametrize("chosen", [None, "3"])
def test_the_ranks_get_the_threads(nvml_standin, tmp_path, chosen):
    """torchrun alone would say 1 for two processes, and a chosen number stays."""
    script = tmp_path / "threads.py"
    script.write_text("import os; print(os.environ['OMP_NUM_THREADS'])")
    env = {"PET_NPROC_PER_NODE": "1", **({"OMP_NUM_THREADS": chosen} if chosen else {})}
    done = agent(nvml_standin, h100_sxm(1), "launch", "--", str(script), env=env)
    cpus = len(os.sched_getaffinity(0))
    assert (0, f"{chosen or cpus}\n") == (done.returncode, done.stdout)
