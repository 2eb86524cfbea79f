"""
A torch with GPUs of our choice: put the folder above on PYTHONPATH, and a scenario into FAKE_CUDA_SCENARIO (JSON).

It is the real torch. What goes to `cuda` is computed on the CPU; only what takes too long there is not computed at all,
and every product and copy advances a clock by what it would take on a GPU of the scenario.
"""

import json
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

HERE = Path(__file__).parent
sys.path = [p for p in sys.path if Path(p).resolve() != HERE.parent]
del sys.modules["torch"]
import torch  # noqa: E402  # the real one, which stands in sys.modules from now on

SCENARIO = json.loads(os.environ["FAKE_CUDA_SCENARIO"])
# As CUDA would: a UUID, an index, or all. One process sees one GPU, except for copies between all of them.
VISIBLE = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
GPU = {**SCENARIO["gpus"].get("*", {}), **SCENARIO["gpus"].get(VISIBLE[0], {})}
SMALL = 1 << 33  # floating-point operations; larger products are not computed
clock_ms = 0.0
products = 0
known = {}  # products by their matrices, which stay alive here


def fault(stage):
    """Do what the scenario says of a stage."""
    what = GPU.get(stage)
    if what == "hang":
        signal.pause()
    elif what == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32.00 MiB.")
    elif what == "mistake":
        raise RuntimeError("shapes cannot be multiplied")
    elif isinstance(what, int):
        error = torch.AcceleratorError(f"CUDA error: number {what}\nCUDA kernel errors might be reported later")
        error.error_code = what
        raise error
    elif what:
        raise RuntimeError(what)


def spend(amount, per_second):
    """Let the GPU's clock advance."""
    global clock_ms  # noqa: PLW0603
    clock_ms += 1000 * amount / per_second


def plain(value):
    """Return an argument for the CPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


class Devices(torch.overrides.TorchFunctionMode):
    """Brings what is meant for a GPU to the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        place = str((kwargs or {}).get("device"))
        kwargs = {name: plain(value) for name, value in (kwargs or {}).items()}
        name = getattr(function, "__name__", "")
        if name in ("empty", "zeros", "randn") and kwargs.pop("pin_memory", False):
            kwargs.pop("device", None)
        if name == "randn" and args[0] > 4096:
            return torch.empty(*args, **kwargs)
        if name == "mm":
            return product(*args, **kwargs)
        if name == "copy_":
            return copy(*args)
        if name == "add" and kwargs.get("out") is not None and args[0].numel() > 1 << 24:
            spend(2 * args[0].nbytes, 1e9 * GPU["memory_gbps"])
            return kwargs["out"]
        if name == "fill_" and args[0].numel() > 1 << 24:
            return args[0]
        if name == "to":
            args = tuple(plain(value) for value in args)
        result = function(*args, **kwargs)
        if place.startswith("cuda:"):
            result.place = place
        if name == "add_" and "wrong_integer" in GPU:
            result[GPU["wrong_integer"]] += 1
        return result


def product(left, right, *, out=None):
    """Return a product; one of them, counted from 1, may have a wrong bit."""
    global products  # noqa: PLW0603
    work = 2 * left.shape[0] * left.shape[1] * right.shape[1]
    spend(work, 1e12 * GPU["tflops"])
    if work > SMALL and out is not None:
        return out
    products += 1
    fault("product")
    if (id(left), id(right)) not in known:
        known[id(left), id(right)] = left, right, (left.float() @ right.float()).to(left.dtype)
    result = known[id(left), id(right)][2].clone()
    if products == GPU.get("wrong_product"):
        bits = result[5, 7:8].view(torch.int16 if result.element_size() == 2 else torch.int32)
        bits ^= 1 << 6
    return result


def copy(target, source, **_):
    """Copy nothing, as only the time is looked at."""
    if hasattr(target, "place"):
        pair = f"{source.place} {target.place}"
        spend(target.numel(), 1e9 * SCENARIO["pairs"].get(pair, SCENARIO["pairs"]["*"]))
        return target
    here = target.numel() == 256 << 20
    # Inside a GPU the driver copies, more slowly than a kernel does.
    spend(target.nbytes * (1 if here else 2), 1e9 * (GPU["host_gbps"] if here else 0.7 * GPU["memory_gbps"]))
    return target


class Event:
    """A moment on the GPU's clock."""

    def __init__(self, *, enable_timing):
        self.at = None

    def record(self):
        self.at = clock_ms

    def elapsed_time(self, other):
        return other.at - self.at


class Properties:
    name = GPU.get("name", "NVIDIA H100 80GB HBM3")
    major, minor = GPU.get("capability", (9, 0))


for name in GPU.get("lacks", ()):
    delattr(torch, name)
torch.version.cuda = SCENARIO.get("cuda", "13.0")
torch.cuda.init = lambda: fault("context")
torch.cuda.synchronize = lambda: fault("synchronize")
torch.cuda.get_device_properties = lambda index: Properties
torch.cuda.get_device_capability = lambda: (Properties.major, Properties.minor)
torch.cuda.mem_get_info = lambda: (GPU.get("free_bytes", 70 << 30), 80 << 30)
torch.cuda.device_count = lambda: len(VISIBLE)
torch.cuda.device = lambda index: nullcontext()
torch.cuda.Event = Event
Devices().__enter__()
