"""`explain`: every setting that was read, with its value, origin and effect."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from trainer_agent.cgroup import read_limits
from trainer_agent.commands.launch import read_job
from trainer_agent.commands.launch_options import LaunchOptions, launch_options
from trainer_agent.commands.variables import OTHERS, all_variables
from trainer_agent.env import Setting, redact_all, secrets_in
from trainer_agent.errors import AgentError, Finding
from trainer_agent.host import Host
from trainer_agent.initializers import shown_uri
from trainer_agent.launchers import build
from trainer_agent.launchers.torchrun_flags import findings, origins_of, told
from trainer_agent.topology import LAUNCHER, read_topology
from trainer_agent.wrappers import unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainer_agent.launchers import Job
    from trainer_agent.mpi.plan import Plan
    from trainer_agent.nproc import Decision

URI = re.compile(r"[^\s,;]+://[^\s,;]+")
COLUMNS = ("setting", "value", "origin", "effect")


@click.command(context_settings={"allow_interspersed_args": False})
@launch_options
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    show_envvar=True,
    help="What goes to standard output.",
)
@click.argument("script", nargs=-1, type=click.UNPROCESSED)
def explain(output: str, script: tuple[str, ...], **settings: Any) -> int:
    """
    Print what `launch` would read, decide and run, and where each value comes from.

    \b
    trainer-agent explain
    trainer-agent explain --output json -- train.py
    """
    known = (*OTHERS, *all_variables(click.get_current_context().find_root()))
    found = gather(LaunchOptions(**settings), script or ("train.py",), os.environ, Host(), known=known)
    data = redact_all(found, secrets_in(os.environ))
    click.echo(json.dumps(data, indent=2, ensure_ascii=False) if output == "json" else render(data))
    return int(data["exit_code"])


def gather(
    options: LaunchOptions,
    script: tuple[str, ...],
    environ: Mapping[str, str],
    host: Host,
    *,
    known: Sequence[str],
) -> dict[str, Any]:
    """
    Return settings, problems and the command; `exit_code` is what `launch` would give up with, or 0.

    Args:
        known: the variables that this program reads.
    """
    rows, contradictions = _options(environ, known), findings(script, environ)
    environ = told(script, unwrapped(environ))
    topology = read_topology({**environ, LAUNCHER: options.launcher}, hostname=host.hostname())
    rows = [*_by_flags(topology.settings, script), *_limits(host), *rows]
    problems = [_problem(f) for f in (*topology.findings, *contradictions)]
    runtime, command, code = topology.runtime, "", 30 if topology.errors else 0
    try:
        if not topology.errors:
            job = read_job(options, topology, script, environ, host)
            rows += _decided(job, environ)
            runtime = "mpi" if job.mpi else runtime
            command = shlex.join(build(job, options.launcher)[1].argv)
    except AgentError as error:
        problems.append(_problem(Finding(error.code, error.message, hint=error.hint)))
        code = int(error.exit_code)
    settings = [{"setting": s.name, "value": _shown(s.value), "origin": s.origin, "effect": s.effect} for s in rows]
    return {"runtime": runtime, "settings": settings, "problems": problems, "command": command, "exit_code": code}


def _decided(job: Job, environ: Mapping[str, str]) -> list[Setting]:
    processes = Setting("processes", str(job.nproc.value), "decision", job.nproc.reason)
    return [*(_mpi(job.mpi) if job.mpi else []), processes, _omp(job.nproc, environ)]


def _by_flags(settings: Iterable[Setting], script: tuple[str, ...]) -> list[Setting]:
    """Return the settings with the flag as the origin of those that the user's own torchrun is told."""
    origins = origins_of(script)
    return [replace(setting, origin=origins.get(setting.name, setting.origin)) for setting in settings]


def _problem(finding: Finding) -> dict[str, str]:
    return {"code": finding.code, "severity": str(finding.severity), "message": finding.message, "hint": finding.hint}


def _limits(host: Host) -> list[Setting]:
    limits = read_limits(host)
    quota = "none" if limits.cpu_quota is None else f"{limits.cpu_quota:g}"
    memory = "none" if limits.memory_limit is None else f"{limits.memory_limit / 2**30:.1f} GiB"
    where = f"cgroup v{limits.version}" if limits.version else "no cgroup"
    return [
        Setting("cpu quota", quota, where, f"{limits.cpus:g} CPUs may be used"),
        Setting("cpus allowed", str(limits.cpus_allowed), "affinity mask"),
        Setting("memory limit", memory, where),
    ]


def _shown(value: str) -> str:
    """Return a value without what may be secret in the URIs that it holds."""
    return URI.sub(lambda found: shown_uri(found[0]), value)


def _options(environ: Mapping[str, str], known: Sequence[str]) -> list[Setting]:
    return [
        Setting(name, value, "environment", _effect(name, known))
        for name, value in sorted(environ.items())
        if name.startswith("TRAINER_AGENT_")
    ]


def _effect(name: str, known: Sequence[str]) -> str:
    """Return what a variable of ours is; a check of somebody else's may read one that we do not know."""
    if name in known:
        return "an option of trainer-agent"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
    return "no option of trainer-agent" + (f", which has {near[0]}" if near else "")


def _mpi(plan: Plan) -> list[Setting]:
    from trainer_agent.mpi.settings import settings

    found, hosts = plan.implementation, plan.hosts.entries
    return [
        *settings(plan.environ),
        Setting("MPI", f"{found.kind} {found.version}", f"{plan.asked.program} --version", "whose options are used"),
        Setting("hosts", str(len(hosts)), "hostfile", ", ".join(f"{entry.name} with {entry.slots}" for entry in hosts)),
    ]


def _omp(decision: Decision, environ: Mapping[str, str]) -> Setting:
    if decision.omp_threads is None:
        return Setting(
            "OMP_NUM_THREADS",
            environ.get("OMP_NUM_THREADS", ""),
            "environment" if "OMP_NUM_THREADS" in environ else "not set",
        )
    return Setting("OMP_NUM_THREADS", str(decision.omp_threads), "decision", "CPUs divided by processes")


def render(data: dict[str, Any]) -> str:
    """Return the settings as an aligned table, then the problems, then the command."""
    rows = [COLUMNS, *(tuple(row[c] or "-" for c in COLUMNS) for row in data["settings"])]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]]).rstrip() for row in rows
    ]
    lines += ["", *(f"{p['severity']}: {p['message']} [{p['code']}]\n  -> {p['hint']}" for p in data["problems"])]
    if data["command"]:
        lines.append(f"runs: {data['command']}")
    return "\n".join(lines)
