"""Adds up the process numbers of a JAX job without a word about how the processes found each other."""

import jax
import numpy as np
from jax.experimental import multihost_utils

numbers = multihost_utils.process_allgather(np.array([jax.process_index()]))
print(f"process {jax.process_index()} of {jax.process_count()}: sum {numbers.sum()}", flush=True)
