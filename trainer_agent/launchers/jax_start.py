"""
Connect this process with the others of a JAX job, then run a script or a module as Python itself would.

    python jax_start.py train.py --epochs 3
    python jax_start.py -m package.module

It runs in the Python of the training image, which knows nothing of this program. The three JAX_* variables are what
Kubeflow Trainer injects; jax.distributed.initialize() reads only one of them by itself.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib import import_module
from pathlib import Path


def set_path(words: list[str]) -> None:
    """Have in sys.path what Python puts first, instead of this directory, where a jax.py lies that is not JAX."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path.cwd() if words[0] == "-m" else Path(words[0]).resolve().parent)


def connect() -> None:
    """Meet the other processes."""
    import_module("jax").distributed.initialize(
        coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
        process_id=int(os.environ["JAX_PROCESS_ID"]),
    )


def run(words: list[str]) -> None:
    """Run the script or module as the main one."""
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    set_path(sys.argv[1:])
    connect()
    run(sys.argv[1:])
