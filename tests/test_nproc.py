"""nproc: how many processes, and the sentence that says why."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.accelerators import Accelerators
from trainer_agent.errors import FatalError, RetryError
from trainer_agent.nproc import Decision, NprocMismatchError, Policy, decide, omp_is_set

NONE = Accelerators("none", 0, "0 device nodes")
BROKEN = Accelerators("none", 0, "NVML", problem="Driver Not Loaded")
NVIDIA = Accelerators("nvidia", 8, "NVML: 8 GPUs")
MIG = Accelerators("mig", 2, "NVML: 2 MIG instances")
MIG_LISTED = Accelerators("mig", 2, "NVML: 2 MIG instances", visible=("MIG-a", "MIG-b"))
MIG_ONE = Accelerators("mig", 1, "NVML: 1 MIG instances")
TPU = Accelerators("tpu", 4, "4 TPU device nodes")
NEURON = Accelerators("neuron", 16, "16 device nodes")
GAUDI = Accelerators("gaudi", 8, "8 Gaudi device nodes")
INTEL = Accelerators("intel", 2, "2 Intel render nodes")
AMD = Accelerators("amd", 4, "4 ROCm GPUs")
LIST_THEM = "to use more, list their UUIDs in CUDA_VISIBLE_DEVICES and set spec.trainer.numProcPerNode to their number"
ALL_OF_THEM = "--nproc gpu (TRAINER_AGENT_LAUNCH_NPROC=gpu) uses all, also with dynamic allocation"


def choose(asked, found, *, cpus=16.0, **settings):
    """Decide without OMP_NUM_THREADS, which has tests of its own."""
    return decide(asked, found, cpus=cpus, omp_set=True, **settings)


@pytest.mark.parametrize(
    "asked, found, value, reason",
    [
        ("auto", NVIDIA, 8, "8 processes for PET_NPROC_PER_NODE=auto: NVML: 8 GPUs"),
        ("gpu", AMD, 4, "4 processes for PET_NPROC_PER_NODE=gpu: 4 ROCm GPUs"),
        ("auto", GAUDI, 8, "8 processes for PET_NPROC_PER_NODE=auto: 8 Gaudi device nodes"),
        ("auto", MIG_ONE, 1, "1 process, because a process sees one MIG instance (NVML: 1 MIG instances)"),
        (
            "auto",
            TPU,
            1,
            "1 process for PET_NPROC_PER_NODE=auto: 4 TPU device nodes, and one process drives all of them",
        ),
        (
            None,
            NEURON,
            1,
            "1 process for PET_NPROC_PER_NODE not being set: 16 device nodes, and one process drives all of them",
        ),
        (
            "auto",
            INTEL,
            "auto",
            "as many processes as torch counts, for PET_NPROC_PER_NODE=auto: 2 Intel render nodes",
        ),
        (None, NVIDIA, 8, "8 processes for PET_NPROC_PER_NODE not being set: NVML: 8 GPUs"),
        (None, NONE, 1, "1 process for PET_NPROC_PER_NODE not being set: no accelerator is visible"),
        ("cpu", NVIDIA, 16, "16 processes for PET_NPROC_PER_NODE=cpu: the CPU limit is 16"),
        (8, NVIDIA, 8, "8 processes, one for each device (NVML: 8 GPUs)"),
        (1, TPU, 1, "1 process, because 4 TPU device nodes: one process drives all of them"),
        (1, MIG_ONE, 1, "1 process, because a process sees one MIG instance (NVML: 1 MIG instances)"),
        (
            5,
            INTEL,
            5,
            "5 processes as PET_NPROC_PER_NODE=5 says; only torch can count these devices (2 Intel render nodes)",
        ),
        (16, NONE, 16, "16 processes as PET_NPROC_PER_NODE=16 says, on CPUs: no accelerator is visible"),
    ],
)
def test_what_fits(asked, found, value, reason):
    """A request that fits is kept without any warning."""
    assert Decision(value, reason) == choose(asked, found)


@pytest.mark.parametrize(
    "asked, found, value, reason",
    [
        (
            16,
            NVIDIA,
            8,
            "8 processes, not PET_NPROC_PER_NODE=16, because there are no more devices here (NVML: 8 GPUs)",
        ),
        (
            100,
            GAUDI,
            8,
            "8 processes, not PET_NPROC_PER_NODE=100, because there are no more devices here (8 Gaudi device nodes)",
        ),
        (
            100,
            TPU,
            1,
            "1 process, because 4 TPU device nodes: one process drives all of them, not PET_NPROC_PER_NODE=100",
        ),
        (
            2,
            NEURON,
            1,
            "1 process, because 16 device nodes: one process drives all of them, not PET_NPROC_PER_NODE=2",
        ),
        (
            16,
            MIG,
            1,
            f"1 process, because a process sees one MIG instance (NVML: 2 MIG instances); {LIST_THEM}",
        ),
        (
            96,
            NONE,
            16,
            "16 processes, not PET_NPROC_PER_NODE=96, because no accelerator is visible and the CPU limit is 16",
        ),
        (
            96,
            BROKEN,
            16,
            (
                "16 processes, not PET_NPROC_PER_NODE=96, because no accelerator is visible "
                "(the NVIDIA driver does not answer: Driver Not Loaded) and the CPU limit is 16"
            ),
        ),
    ],
)
def test_what_cannot_work_is_fixed(asked, found, value, reason):
    """Under `fix` an impossible number becomes the possible one, `trust` keeps it, `strict` refuses."""
    assert Decision(value, reason, changed=True, warning=True) == choose(asked, found)
    trusted = f"{asked} processes as PET_NPROC_PER_NODE says, against our advice: {reason}"
    assert Decision(asked, trusted, warning=True) == choose(asked, found, policy=Policy.TRUST)
    with pytest.raises(NprocMismatchError) as refused:
        choose(asked, found, policy=Policy.STRICT)
    hint = "set spec.trainer.numProcPerNode to the number of GPUs in a pod, or use --nproc-policy fix"
    expected = ("nproc-mismatch", f"{reason}, and --nproc-policy is strict", hint, 30)
    error = refused.value
    assert expected == (error.code, error.message, error.hint, error.exit_code)


@pytest.mark.parametrize(
    "asked, found, value, reason",
    [
        (
            1,
            NVIDIA,
            1,
            f"1 process as PET_NPROC_PER_NODE=1 says, so 7 of 8 devices stay idle (NVML: 8 GPUs); {ALL_OF_THEM}",
        ),
        (
            4,
            GAUDI,
            4,
            (
                "4 processes as PET_NPROC_PER_NODE=4 says, so 4 of 8 devices stay idle (8 Gaudi device nodes); "
                f"{ALL_OF_THEM}"
            ),
        ),
        (
            None,
            MIG,
            1,
            f"1 process, because a process sees one MIG instance (NVML: 2 MIG instances); {LIST_THEM}",
        ),
        (
            1,
            BROKEN,
            1,
            (
                "1 process as PET_NPROC_PER_NODE=1 says, on CPUs: no accelerator is visible "
                "(the NVIDIA driver does not answer: Driver Not Loaded)"
            ),
        ),
        (
            None,
            BROKEN,
            1,
            (
                "1 process for PET_NPROC_PER_NODE not being set: no accelerator is visible "
                "(the NVIDIA driver does not answer: Driver Not Loaded)"
            ),
        ),
    ],
)
@pytest.mark.parametrize("policy", list(Policy))
def test_what_works_but_should_be_read(asked, found, value, reason, policy):
    """What is possible yet surprising is kept with a warning, under every policy."""
    assert Decision(value, reason, warning=True) == choose(asked, found, policy=policy)


def test_a_listed_mig_instance_for_each_process():
    """Only an explicit list of MIG instances makes several processes possible, each with its own device 0."""
    reason = "2 processes, one for each MIG instance that CUDA_VISIBLE_DEVICES lists"
    assert Decision(2, reason, virtual_local_rank=True) == choose(2, MIG_LISTED)
    assert choose(3, MIG_LISTED).value == choose("auto", MIG_LISTED).value == 1


@pytest.mark.parametrize("word", ["auto", "gpu"])
def test_devices_asked_for_and_none_there(word):
    """The controller leaves `auto` only where it saw a request for GPUs, so nothing starts without one."""
    with pytest.raises(FatalError) as refused:
        choose(word, NONE)
    message = f"PET_NPROC_PER_NODE={word} asks for accelerators and none is visible here (0 device nodes)"
    hint = (
        "check that the container requests nvidia.com/gpu and that the device plugin runs on this node; "
        "to train on CPUs set TRAINER_AGENT_LAUNCH_NPROC=cpu, in spec.trainer.env of a TrainJob"
    )
    error = refused.value
    assert ("no-accelerator", message, hint, 30) == (error.code, error.message, error.hint, error.exit_code)


def test_devices_asked_for_and_the_driver_broken():
    """A driver that does not answer is this node's fault, so another node may do."""
    with pytest.raises(RetryError) as refused:
        choose("auto", BROKEN, variable="--nproc")
    message = (
        "--nproc=auto asks for accelerators and none is visible here "
        "(the NVIDIA driver does not answer: Driver Not Loaded)"
    )
    hint = "cordon this node and look at `nvidia-smi` and `dmesg` on it; the pod can run elsewhere"
    error = refused.value
    assert ("gpu-driver-broken", message, hint, 20) == (error.code, error.message, error.hint, error.exit_code)


@pytest.mark.parametrize("cpus, value", [(0.5, 1), (1.0, 1), (1.5, 2), (16.0, 16)])
def test_cpu_quota(cpus, value):
    """A CPU quota is rounded up, for `cpu`, for the fallback and as the most that a number may be."""
    processes = "1 process" if value == 1 else f"{value} processes"
    assert Decision(value, f"{processes} for PET_NPROC_PER_NODE=cpu: the CPU limit is {cpus:g}") == choose(
        "cpu", NONE, cpus=cpus
    )
    reason = (
        f"{processes} on CPUs for PET_NPROC_PER_NODE=auto: no accelerator is visible, and --allow-cpu-fallback is given"
    )
    assert Decision(value, reason, warning=True) == choose("auto", NONE, cpus=cpus, allow_cpu=True)
    assert value == choose(96, NONE, cpus=cpus).value


@pytest.mark.parametrize(
    "asked, found, cpus, threads",
    [(8, NVIDIA, 16.0, 2), (8, NVIDIA, 17.9, 2), ("cpu", NONE, 0.5, 1), ("cpu", NONE, 1.5, 1), (1, NONE, 4.0, 4)],
)
def test_omp_threads(asked, found, cpus, threads):
    """The CPUs are divided among the processes, one thread at least."""
    assert threads == decide(asked, found, cpus=cpus).omp_threads


def test_omp_threads_are_left_alone():
    """Neither a user's own choice nor a number that only torch knows is overruled."""
    assert (None, None) == (choose(8, NVIDIA).omp_threads, decide("auto", INTEL, cpus=16.0).omp_threads)


@pytest.mark.parametrize("value, is_set", [(None, False), ("", False), (" ", False), ("4", True), ("4,2", True)])
def test_omp_is_set(value, is_set):
    """An empty OMP_NUM_THREADS is a choice of nobody."""
    assert is_set == omp_is_set({} if value is None else {"OMP_NUM_THREADS": value})


KINDS = st.sampled_from(["nvidia", "mig", "amd", "intel", "gaudi", "tpu", "neuron", "none"])
FOUND = st.builds(Accelerators, KINDS, st.integers(0, 16), st.just("found"))
ASKED = st.one_of(st.none(), st.sampled_from(["auto", "cpu", "gpu"]), st.integers(1, 10**19))


@given(asked=ASKED, found=FOUND, cpus=st.floats(0.01, 512), policy=st.sampled_from(Policy))
def test_there_is_always_a_process_and_never_one_too_many(asked, found, cpus, policy):
    """Whatever is asked for, at least one process starts, and under `fix` never more than devices."""
    try:
        decision = decide(asked, found, cpus=cpus, policy=policy, allow_cpu=True)
    except NprocMismatchError:
        assert policy is Policy.STRICT
        return
    assert decision.value == "auto" or decision.value >= 1
    assert decision.omp_threads is None or 1 <= decision.omp_threads <= max(1, math.floor(cpus))
    if policy is Policy.FIX and isinstance(asked, int) and asked > found.count > 0 and found.kind != "intel":
        assert decision.value <= found.count
