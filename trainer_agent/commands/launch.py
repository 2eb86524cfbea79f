"""`launch`: validate, decide, wait, become the launcher."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainer_agent.accelerators import find_accelerators
from trainer_agent.bundle import training_python
from trainer_agent.cgroup import read_limits
from trainer_agent.commands.launch_options import LaunchOptions, launch_options
from trainer_agent.env import redact_all, secrets_in, whole_number
from trainer_agent.errors import ConfigurationError, ExitCode, FatalError
from trainer_agent.host import Host
from trainer_agent.launchers import AUTO, Command, Job, build
from trainer_agent.launchers.autopsy import Autopsy
from trainer_agent.launchers.outcome import outcome
from trainer_agent.launchers.supervise import Ended, cannot_start, supervise
from trainer_agent.launchers.torchrun_flags import findings, own_torchrun, told
from trainer_agent.log import get_logger
from trainer_agent.mpi.suits import finds_mpirun, is_mpi, refuse_hostfile
from trainer_agent.nproc import Decision, Policy, decide, omp_is_set
from trainer_agent.process import holds_terminal
from trainer_agent.rendezvous import tracker_takes_probes, wait_for_master
from trainer_agent.shells import is_shell
from trainer_agent.termination import failures_told, tell, with_tail
from trainer_agent.topology import LAUNCHER, NPROC_WORDS, Topology, read_topology
from trainer_agent.wrappers import is_wrapper, restore_signals, unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainer_agent.mpi.plan import Plan

# torchrun kills its ranks this long before we would kill torchrun, so that it can still tell what happened.
SHUTDOWN_MARGIN_S = 2
STEPS = "TRAINER_AGENT_RUN_STEPS"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
MEMORY = Path("/dev/shm")


@click.command(context_settings={"allow_interspersed_args": False})
@launch_options
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(script: tuple[str, ...], **settings: Any) -> int:
    """
    Decide the number of processes, wait for rank 0, and become torchrun or the command itself.

    \b
    trainer-agent launch -- train.py --epochs 3
    trainer-agent launch --dry-run -- train.py
    trainer-agent launch --launcher python -- -m package.module
    """
    options = LaunchOptions(**settings)
    return start(options, script, read_environ(script, os.environ, hostfile=options.hostfile), Host())


def read_environ(script: tuple[str, ...], environ: Mapping[str, str], *, hostfile: str | None) -> dict[str, str]:
    """
    Return the variables that count: with what the flags of the user's own torchrun say, and what we start marked.

    A shell may start torchrun, and flags that we cannot see yet say who the nodes are: then our wrapper launches it.
    So it does an mpirun that the command starts, in whatever way, where an MPI job's hosts would else be left out.
    """
    finds_wrappers = script and (is_shell(script) or finds_mpirun(script))
    if finds_wrappers and not is_mpi(script, environ, hostfile=hostfile):
        return {**environ, STEPS: "launch"}
    if script:
        for finding in findings(script, environ):
            get_logger().warning(finding.message, code=finding.code, hint=finding.hint)
    return told(script, unwrapped(environ))


def start(options: LaunchOptions, script: tuple[str, ...], environ: Mapping[str, str], host: Host) -> int:
    """Launch `script`; return its exit code when supervising, and not at all when exec'ing."""
    with failures_told(options.termination_log, environ):
        topology, command = prepare(options, script, environ, host)
        if options.dry_run:
            click.echo(shlex.join(command.argv))
            return ExitCode.PASS
        if command.mpi:
            return _start_mpi(options, command, host)
        if not topology.single_node:
            worker = topology.runtime == "xgboost" and topology.node_rank != 0 and options.launcher != "python"
            probe = worker and tracker_takes_probes(script, python_of(options, environ), environ)
            wait_for_master(topology, host, timeout_s=options.rendezvous_timeout, probe=probe)
        supervised = os.getpid() == 1 if options.supervise is None else options.supervise
        shown = shlex.join(redact_all(command.argv, secrets_in(environ)))  # quotes would break a secret up
        get_logger().info("launching", command=shown, supervised=supervised)
        return _supervise(options, command, topology, host) if supervised else _become(command)


def prepare(
    options: LaunchOptions, script: tuple[str, ...], environ: Mapping[str, str], host: Host
) -> tuple[Topology, Command]:
    """
    Return the job's shape and the command, without waiting for anybody.

    Raises:
        AgentError: the environment contradicts itself, or this node cannot do what was asked.
    """
    topology = read_topology({**environ, LAUNCHER: options.launcher}, hostname=host.hostname())
    if topology.errors:
        raise ConfigurationError(topology.errors)
    for finding in topology.findings:
        get_logger().warning(finding.message, code=finding.code, hint=finding.hint)
    job = read_job(options, topology, script, environ, host)
    name, command = build(job, options.launcher)
    if name != "python" or topology.runtime == "torch":
        decision = job.nproc
        log = get_logger().warning if decision.warning else get_logger().info
        log("number of processes", nproc=decision.value, reason=decision.reason, omp_num_threads=decision.omp_threads)
    if command.note:
        get_logger().warning(command.note)
    return topology, command


def read_job(
    options: LaunchOptions, topology: Topology, script: tuple[str, ...], environ: Mapping[str, str], host: Host
) -> Job:
    """
    Return all that a launcher needs to know.

    Raises:
        AgentError: this node cannot do what was asked, or an MPI job has no hostfile or no mpirun.
    """
    python = python_of(options, environ)
    mpi = _read_mpi(options, topology, script, environ, python=python)
    return Job(
        topology=topology,
        nproc=decide_nproc(options, topology, environ, host, mpi, script=script),
        script=script,
        environ=environ,
        python=python,
        torchrun=find_torchrun(python, environ),
        rendezvous_timeout_s=options.rendezvous_timeout,
        keep_pet_env=options.keep_pet_env,
        mpi=mpi,
    )


def python_of(options: LaunchOptions, environ: Mapping[str, str]) -> str:
    """Return the training environment's Python."""
    return options.python or training_python(environ)


def _read_mpi(
    options: LaunchOptions, topology: Topology, script: tuple[str, ...], environ: Mapping[str, str], *, python: str
) -> Plan | None:
    """
    Return what an MPI job is made of; a controller of another kind knows better than a variable of the image.

    Raises:
        FatalError: there is no hostfile or no mpirun, or a hostfile for what is no MPI job.
    """
    found = topology.runtime in ("plain", "mpi") and is_mpi(script, environ, hostfile=options.hostfile)
    if options.launcher != "mpirun" and not (options.launcher == AUTO and found):
        if options.hostfile:
            kind = {"runtime": topology.runtime, "launcher": options.launcher}
            refuse_hostfile(options.hostfile, script, environ=environ, **kind)
        return None
    from trainer_agent.mpi.prepare import read_plan

    return read_plan(
        script, environ, python=python, path=options.hostfile, exports=options.export, verified=options.verify
    )


def decide_nproc(
    options: LaunchOptions,
    topology: Topology,
    environ: Mapping[str, str],
    host: Host,
    mpi: Plan | None = None,
    *,
    script: tuple[str, ...] = (),
) -> Decision:
    """Return the number of processes for this node, in an MPI job for each; JAX and plain commands have one."""
    asked, variable = topology.nproc, "--nproc" if topology.runtime == "xgboost" else "PET_NPROC_PER_NODE"
    policy, allow_cpu = Policy(options.nproc_policy), options.allow_cpu_fallback
    if flag := _nproc_flag(script):
        variable, allow_cpu = "--nproc-per-node", allow_cpu or flag == "auto"  # torchrun's auto means CPUs, too
        policy = Policy.TRUST if policy is Policy.FIX else policy  # whoever writes the command wants its number
    elif options.nproc is not None:
        asked, variable = _asked(options.nproc), "--nproc"
    if not mpi and options.nproc is None and not _by_devices(options, topology):
        return Decision(1, f"1 process: the runtime is {topology.runtime}")
    known = partial(
        decide,
        cpus=read_limits(host).cpus,
        policy=policy,
        allow_cpu=allow_cpu,
        omp_set=omp_is_set(environ),
    )
    find = partial(find_accelerators, host, environ)
    if mpi:
        from trainer_agent.mpi.slots import decide_slots

        return decide_slots(mpi.hosts, hostname=topology.hostname, asked=asked, find=find, decide=known)
    return known(asked, find(), variable=variable)


def _by_devices(options: LaunchOptions, topology: Topology) -> bool:
    """Whether the devices decide; in an XGBoost job Trainer has counted them, and says so in a product only."""
    if topology.runtime == "xgboost" and options.launcher == AUTO:
        return True
    return topology.runtime == "torch" or options.launcher in ("torchrun", "xgboost")


def _nproc_flag(script: tuple[str, ...]) -> str:
    own = own_torchrun(script)
    return own[1].flags.get("--nproc-per-node", "") if own else ""


def _asked(text: str) -> int | str:
    text = text.strip()
    if text in NPROC_WORDS:
        return text
    if number := whole_number(text):
        return number
    raise FatalError(
        "nproc-invalid",
        f"--nproc={text!r} is neither auto, cpu, gpu nor a number of 1 or more",
        hint="give a number such as 8",
    )


def find_torchrun(python: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return torchrun beside the training environment's Python, else on PATH, else as a module."""
    beside = [str(Path(python).parent)] if os.sep in python else []
    for directory in (*beside, *environ.get("PATH", os.defpath).split(os.pathsep)):
        program = str(Path(directory) / "torchrun")
        if directory and os.access(program, os.X_OK) and not is_wrapper(program):
            return (program,)
    return (python, "-m", "torch.distributed.run")


def _become(command: Command) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    restore_signals()
    try:
        os.execvpe(command.argv[0], command.argv, dict(command.env))  # noqa: S606  # becoming the user's command is the job
    except OSError as error:
        raise cannot_start(command.argv, error) from error


def _start_mpi(options: LaunchOptions, command: Command, host: Host) -> int:
    """Start mpirun as its parent: only a parent can tell the ranks on all hosts to end, and give them time."""
    from trainer_agent.mpi.start import Waits, start_mpi
    from trainer_agent.mpi.workers import Access

    assert command.mpi is not None  # noqa: S101  # the caller has looked
    if options.supervise is False:
        get_logger().warning("--exec is not for MPI jobs: their launcher stays as the parent of mpirun")
    waits = Waits(options.rendezvous_timeout, options.grace, signal.Signals[f"SIG{options.stop_signal}"])
    message, ended = start_mpi(command.mpi, waits, Access(options.ssh_key, options.host_keys), host)
    return _finish(options, redact_all(message, secrets_in(command.env)), ended)


def _supervise(options: LaunchOptions, command: Command, topology: Topology, host: Host) -> int:
    kills_before = read_limits(host).oom_kills
    with _for_torchrun(options, command) if command.elastic_agent else nullcontext((command.env, None)) as (env, file):
        autopsy = Autopsy(elastic_agent=command.elastic_agent, error_file=file)
        feed = None if _has_prompt(command) else autopsy.feed
        ended = supervise(command.argv, env, grace_s=options.grace, feed=feed)
        kills = (read_limits(host).oom_kills or 0) - (kills_before or 0)
        message = outcome(ended, autopsy, oom_kills=kills, hostname=topology.hostname)
    return _finish(options, redact_all(message, secrets_in(command.env)), ended)


def _has_prompt(command: Command) -> bool:
    """Whether somebody types into a shell, `bash -l` or `./entrypoint.sh bash`: it shows it on a terminal alone."""
    names = [word for word in " ".join(command.argv).split() if not word.startswith("-")]
    return holds_terminal() and os.isatty(2) and not command.elastic_agent and is_shell(names[-1:] or [""])


@contextmanager
def _for_torchrun(options: LaunchOptions, command: Command) -> Iterator[tuple[Mapping[str, str], Path]]:
    """
    Yield the environment in which torchrun tells us what happens, and the file where a rank writes its error.

    A file of the user's gets the same at the end: torchrun removes its own, which it cannot where it is a mount.
    """
    theirs = command.env.get(ERROR_FILE)
    with _scratch() as scratch:
        file = scratch / "error.json"
        env = {**command.env, ERROR_FILE: str(file)}
        # Variables, not flags: an older torchrun ignores what it does not know.
        env.setdefault("PET_EVENT_LOG_HANDLER", "console")
        env.setdefault("PET_SHUTDOWN_TIMEOUT", str(max(1, int(options.grace) - SHUTDOWN_MARGIN_S)))
        if scratch.parent == MEMORY:
            env["TMPDIR"] = str(scratch)  # torchrun makes a directory of its own
        yield env, file
        if theirs and file.exists():
            _hand_on(file, theirs)


def _hand_on(file: Path, to: str) -> None:
    try:
        Path(to).write_bytes(file.read_bytes())
    except OSError as error:
        message = f"cannot write a rank's error to {ERROR_FILE}={to}: {error.strerror}"
        get_logger().warning(message, code="not-writable")


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a directory that is gone afterwards, in memory where no other place can be written."""
    import tempfile

    make = partial(tempfile.TemporaryDirectory, prefix="trainer-agent-", ignore_cleanup_errors=True)
    try:
        try:
            directory = make()
        except OSError:
            directory = make(dir=MEMORY)
    except OSError as error:
        hint = "mount an emptyDir at /tmp, or set TMPDIR to a writable directory; torchrun needs one too"
        raise FatalError(
            "no-temporary-directory", f"no temporary file can be made: {error.strerror}", hint=hint
        ) from error
    with directory as name:
        yield Path(name)


def _finish(options: LaunchOptions, message: dict[str, Any], ended: Ended) -> int:
    code = int(message["exit_code"])
    log = get_logger().info if code == ExitCode.PASS else get_logger().error
    log(
        "training ended",
        exit_code=code,
        reason=message["reason"],
        elapsed_s=round(ended.elapsed_s, 1),
        orphans_reaped=ended.reaped,
    )
    if code != ExitCode.PASS:
        tell(options.termination_log, with_tail(message, "error"))
    return code
