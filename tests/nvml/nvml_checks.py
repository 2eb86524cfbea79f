"""Run checks of GPUs on machines of the stand-in for NVML."""

import time

import pynvml  # noqa: F401  # once here instead of in each child
from nvml_machines import h100_sxm, machine, mig
from nvml_models import A100_PCIE, A100_SXM, B200_SXM, GB200, H100_NVL, H100_SXM, H200_SXM, L4

from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Options, Outcome
from trainer_agent.testing import FakeHost, context_on, run_check

HEALTHY = {
    "8 x H100 SXM": h100_sxm(),
    "2 x H200": machine(H200_SXM, 2),
    "2 x B200": machine(B200_SXM, 2),
    "4 x GB200": machine(GB200, 4),
    "4 x A100 SXM": machine(A100_SXM, 4),
    "2 x A100 PCIe": machine(A100_PCIE, 2),
    "2 x H100 NVL": machine(H100_NVL, 2),
    "1 x H100 SXM": machine(H100_SXM, 1),
    "1 x L4": machine(L4, 1),
    "MIG": mig(),
}


class HurriedHost(FakeHost):
    """A machine whose time passes ten times as fast as that of the stand-in."""

    def sleep(self, seconds):
        super().sleep(seconds)
        time.sleep(seconds / 10)


def run_on(standin, scenario, checks, root, *, nodes=8, host=None, accelerators=None, timeout_s=60, **how):
    """Return {name: outcome or reason of the skip} of checks on a machine with device nodes; its clock is a fake."""
    host = host or FakeHost(root)
    for number in range(nodes):
        path = host.path(f"/dev/nvidia{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    given = accelerators or Accelerators("nvidia", nodes, f"NVML: {nodes} GPUs")

    def all_of_them():
        return {check.name: run_check(check, host, accelerators=given, **how) for check in checks}

    return standin.call(scenario, all_of_them, timeout_s=timeout_s)


def context_of(root, environ=None, *, profile="standard"):
    """Return what a check may look at."""
    return context_on(FakeHost(root), environ=environ, options=Options(profile=profile))


def found(outcomes):
    """Return (check, severity, code, indices of the GPUs) of every finding, in order."""
    return [
        (name, str(f.severity), f.code, [gpu["index"] for gpu in f.evidence.get("gpus", [])])
        for name, outcome in outcomes.items()
        if isinstance(outcome, Outcome)
        for f in outcome.findings
    ]


def only(outcome):
    """Return the one finding of an outcome."""
    (finding,) = outcome.findings
    return finding
