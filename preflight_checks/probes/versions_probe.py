"""Tell the versions of torch and NCCL in this Python without importing torch, which takes seconds."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

CUDA = ("cu13", "cu12", "cu11")  # the ends of the names of NVIDIA's wheels


def wheel(prefix: str) -> str | None:
    """Return the version of the first of NVIDIA's wheels that is installed."""
    for end in CUDA:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(f"{prefix}-{end}")
    return None


def torch() -> dict[str, str | None]:
    """Return what torch's own version file says."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return {"torch": None, "torch_cuda": None}
    text = (Path(spec.origin).parent / "version.py").read_text()
    found = {name: re.search(rf"^{name}\b[^=\n]*= *'([^']*)'", text, re.MULTILINE) for name in ("__version__", "cuda")}
    version, cuda = (match.group(1) if match else None for match in (found["__version__"], found["cuda"]))
    return {"torch": version, "torch_cuda": cuda}


def nccl(library: str) -> str | None:
    """Return the version that a libnccl says of itself, None when it cannot be loaded."""
    number = ctypes.c_int()
    try:
        if ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    code = number.value  # 2.8.4 was 2804, from 2.9 on 2.21.5 is 22105
    parts = (
        (code // 10000, code // 100 % 100, code % 100) if code > 10000 else (code // 1000, code // 100 % 10, code % 100)
    )
    return ".".join(str(part) for part in parts)


def preloaded() -> str | None:
    """Return the libnccl that LD_PRELOAD has put into this process."""
    lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    paths = [words[5] for words in lines if len(words) > 5]
    return next((path for path in paths if Path(path).name.startswith("libnccl.so")), None)


def on_the_way() -> str | None:
    """Return the libnccl that LD_LIBRARY_PATH names first."""
    places = [Path(place) / "libnccl.so.2" for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    return next((str(path) for path in places if path.exists()), None)


def main() -> dict[str, Any]:
    """Return all versions; what is not there is None."""
    answer = {"python": platform.python_version(), "nccl": wheel("nvidia-nccl"), "cudnn": wheel("nvidia-cudnn")}
    answer.update(torch())
    for name, library in (("preloaded", preloaded()), ("on_the_way", on_the_way())):
        answer[f"nccl_{name}"] = nccl(library) if library else None
        answer[f"nccl_{name}_path"] = library
    return answer


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main()) + "\n")
