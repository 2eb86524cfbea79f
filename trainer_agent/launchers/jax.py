"""JAX, for scripts without a jax.distributed.initialize() of their own: that is done before they start."""

from __future__ import annotations

from pathlib import Path

from trainer_agent.errors import FatalError
from trainer_agent.launchers import INTERPRETER, Command, Job, base_env, interpreter_words, is_python_file, python

START = str(Path(__file__).with_name("jax_start.py"))


def suits(job: Job) -> bool:
    """Never by itself: a script that calls initialize(), too, would fail, as JAX allows it once."""
    return False


def command(job: Job) -> Command:
    """
    Return the command with `jax_start.py` before the script, or as it is for a process that has no others.

    Raises:
        FatalError: the command is no Python script or module.
    """
    if job.topology.runtime != "jax" or job.topology.single_node:
        return python.command(job)
    number = interpreter_words(job.script)
    start, script = job.script[:number], job.script[number:]
    if not (start and INTERPRETER.fullmatch(start[0])):
        start = (job.python, *start)
    if not script or not (is_python_file(script[0]) or (script[0] == "-m" and len(script) > 1)):
        raise FatalError(
            "jax-not-a-script",
            f"--launcher jax starts a Python script or `-m MODULE`, not {' '.join(job.script[:2])!r}",
            hint="give it as train.py or -m MODULE; any other command starts with --launcher python, "
            "and has to call jax.distributed.initialize() with the values of JAX_* itself",
        )
    return Command((*start, START, *script), base_env(job))
