"""Machines whose GPUs work: the stand-in for NVML beside the stand-in for torch, with the real checks and probes."""

import json
import os
import time
from pathlib import Path

from nvml_checks import run_on
from nvml_machines import h100_sxm, uuid

from trainer_agent.testing import FakeHost

FAKE_CUDA = Path(__file__).parents[1] / "fake_cuda"
HEALTHY = {"tflops": 700, "memory_gbps": 2900, "host_gbps": 54}


class RealTimeHost(FakeHost):
    """A machine with the clock of the probes."""

    def monotonic(self):
        return time.monotonic()

    def sleep(self, seconds):
        time.sleep(seconds)


def at_work(scenario):
    """Return a machine whose PCIe links are awake, as they are while data goes over them."""
    return scenario.says("nvmlDeviceGetCurrPcieLinkGeneration", 5)


def variables(gpus, *, cuda="13.0", pairs=None):
    """Return the environment of a training process there."""
    told = {key if key == "*" else uuid(key): value for key, value in gpus.items()}
    told["*"] = {**HEALTHY, **told.get("*", {})}
    scenario = json.dumps({"gpus": told, "cuda": cuda, "pairs": {"*": 400, **(pairs or {})}})
    plain = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    return plain | {"PYTHONPATH": str(FAKE_CUDA), "FAKE_CUDA_SCENARIO": scenario}


def work_on(standin, check, root, *, gpus=None, scenario=None, count=2, environ=None, cuda="13.0", pairs=None, **how):
    """Return what a check finds on a node; `gpus` changes a GPU of torch by its index, `"*"` all of them."""
    given = variables(gpus or {}, cuda=cuda, pairs=pairs) | (environ or {})
    machine = at_work(h100_sxm(count)) if scenario is None else scenario
    made = run_on(standin, machine, [check], root, nodes=count, host=RealTimeHost(root), environ=given, **how)
    return made[check.name]
