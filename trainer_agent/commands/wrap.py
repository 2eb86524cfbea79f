"""`wrap`: what stands behind the `torchrun` and `mpirun` that come first on PATH."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from trainer_agent.launchers.torchrun_flags import own_torchrun, told
from trainer_agent.log import get_logger
from trainer_agent.mpi.suits import is_mpi
from trainer_agent.topology import read_topology
from trainer_agent.wrappers import SWITCH, become, need_real, places, unwrapped, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SUPERVISE = "TRAINER_AGENT_LAUNCH_SUPERVISE"
FIRST = (0, "static")
WAITING = 4096  # connections that the kernel may hold: nobody takes them


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def wrap(ctx: click.Context, program: str, arguments: tuple[str, ...]) -> int:
    """
    Run torchrun, mpirun or mpiexec the whole way: preflight, initialize, launch.

    The real program is the next one on PATH. Variables set everything, as for `run`: TRAINER_AGENT_RUN_STEPS and so on.
    What starts no training becomes the real program at once, and so does all with TRAINER_AGENT_WRAP=0.

    \b
    trainer-agent wrap torchrun train.py
    TRAINER_AGENT_WRAP=0 trainer-agent wrap torchrun train.py
    """
    real = need_real(program, os.environ)
    if not wanted(os.environ) or not trains((real, *arguments), os.environ):
        become((real, *arguments), os.environ)
    return _whole_way(ctx, (named(program, real, os.environ), *arguments))


def trains(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether a command starts training; a question for help, a mistake or an mpirun of no job does not."""
    if own := own_torchrun(words):
        _, given = own
        if given.unknown and not given.asks:
            _tell_unknown(given.unknown)
        return given.trains
    if not is_mpi(words, environ):
        return False
    from trainer_agent.mpi.words import ASKING, parse

    asked = parse(words)
    return asked.unknown not in ASKING and all(part.command for part in asked.parts)


def named(program: str, real: str, environ: Mapping[str, str]) -> str:
    """Return the name to start a program by: Open MPI hands the prefix of one with a path on to all hosts."""
    first = next(places(program, unwrapped(environ).get("PATH")), "")
    return program if program != "torchrun" and first == real else real


@contextmanager
def reachable(words: Sequence[str]) -> Iterator[None]:
    """
    On rank 0, let the port that the flags name be reached until torchrun listens there.

    Kubeflow's SDK has a shell wait for it on the other nodes, where torchrun starts later: they would never meet.
    """
    own, sockets = own_torchrun(words), []
    shape = read_topology(told(words, os.environ), hostname="")
    if own and "--nnodes" in own[1].flags and not shape.single_node and (shape.node_rank, shape.rdzv_backend) == FIRST:
        for family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # whoever has it is told of by the launch
                sockets.append(socket.create_server(("", shape.master_port), family=family, backlog=WAITING))
    try:
        yield
    finally:
        for each in sockets:
            each.shutdown(socket.SHUT_RDWR)  # a child that hangs may have it, too
            each.close()


def _tell_unknown(word: str) -> None:
    message = f"{word!r} among torchrun's own words is nothing that we understand: torchrun starts without the agent"
    hint = f"correct it if it is a mistake; with {SWITCH}=0 nobody looks"
    get_logger().warning(message, code="torchrun-flag-unknown", hint=hint)


def _whole_way(ctx: click.Context, words: Sequence[str]) -> int:
    """Run the command; below a shell that is PID 1, stay: how the command ended is how the container ends."""
    from trainer_agent.commands.run import run

    stay = ["--supervise"] if os.getppid() == 1 and not os.environ.get(SUPERVISE) else []
    with run.make_context("run", [*stay, "--", *words], parent=ctx.parent, obj=reachable(words)) as inner:
        code: int = run.invoke(inner)
        return code
