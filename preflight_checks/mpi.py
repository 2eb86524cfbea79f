"""The hosts of an MPI job, seen from its launcher: ssh, versions, devices, a small all-reduce by the real mpirun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preflight_checks._mpi_hosts import Said, ask_all, most_common, odd_ones
from preflight_checks._mpi_ranks import MOST_ALL_S, PAIR_S, PAIRS_S, add_up, all_s, find_culprits
from trainer_agent import __version__
from trainer_agent.check import Context, Outcome, Rule, Skip, check
from trainer_agent.errors import Action, AgentError, FatalError, RetryError, Severity
from trainer_agent.mpi.census import listed
from trainer_agent.mpi.settings import read_injected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight_checks._mpi_ranks import Run
    from trainer_agent.errors import Finding
    from trainer_agent.mpi.plan import Plan
    from trainer_agent.mpi.workers import Workers

MARGIN_S = 60.0 + MOST_ALL_S + PAIRS_S + PAIR_S

UNUSABLE = Rule(
    "mpi-unusable",
    when="there is no hostfile or no mpirun, or one that nobody can use",
    hint="see the message, which names the file or program",
    source="LAUNCH: `trainer-agent launch` would stop with the same words",
)
MISSING = Rule(
    "mpi-workers-missing",
    when="a host of the hostfile has no address, or its sshd does not answer until --rendezvous-timeout",
    hint="look at these pods: do they exist, and do they run sshd (`trainer-agent worker`)?",
    action=Action.RETRY,
    source="as `trainer-agent launch` waits",
)
REFUSED = Rule(
    "mpi-ssh-refused",
    when="ssh reaches a host that refuses the job's key, or shows another host key than the others",
    hint="all pods must mount the same key pair, its public key as authorized_keys",
    source="OpenSSH: Permission denied, Host key verification failed",
)
UNREACHABLE = Rule(
    "mpi-ssh-failed",
    when="the sshd of a host answers, and ssh to it fails for another reason than the key",
    hint="look at this pod's log, and at the node that it runs on",
    action=Action.RESCHEDULE,
    source="OpenSSH ends with 255",
)
VERSIONS = Rule(
    "mpi-versions-differ",
    when="a host has another MPI or another version than the launcher, or none",
    hint="use one image for launcher and workers",
    source="daemons and mpirun of different versions of Open MPI or hydra do not understand each other",
)
AGENT = Rule(
    "mpi-agent-differs",
    when="a host has another version of trainer-agent than the launcher, or none",
    hint="use one image for launcher and workers",
    severity=Severity.WARNING,
    source="a worker of another version may not give the ranks their grace",
)
DEVICES = Rule(
    "mpi-devices-missing",
    when="a host has fewer visible devices than slots while others have enough",
    hint="cordon this node and look at `nvidia-smi` on it; the pod can run elsewhere",
    action=Action.RESCHEDULE,
    source="two ranks on one GPU: NCCL refuses with Duplicate GPU",
)
SLOTS = Rule(
    "mpi-slots-exceed-devices",
    when="every host with devices has fewer of them than slots",
    hint="set spec.trainer.numProcPerNode to the number of GPUs in a pod, or give launch --nproc",
    source="two ranks on one GPU: NCCL refuses with Duplicate GPU",
)
WRONG = Rule(
    "mpi-sum-wrong",
    when="an all-reduce of integers has a wrong sum on a host",
    hint="cordon the node: its memory or its network card corrupts data",
    action=Action.RESCHEDULE,
    source="exact integers",
)
HOST = Rule(
    "mpi-host-fault",
    when="the all-reduce of all ranks failed, and so do those of pairs with this host, while others pass",
    hint="cordon the node, and look at its network, at firewalls between pods, and at what mpirun says",
    action=Action.RESCHEDULE,
    source="pairs as in `gang`: two or more partners do clearly better without it",
)
FAILED = Rule(
    "mpi-all-reduce-failed",
    when="the all-reduce of all ranks failed, and pairs of hosts do not tell whose fault it is",
    hint="read what mpirun says; do pods reach each other on all ports?",
    action=Action.RETRY,
    source="MPI needs every pair of hosts",
)
RULES = (UNUSABLE, MISSING, REFUSED, UNREACHABLE, VERSIONS, AGENT, DEVICES, SLOTS, WRONG, HOST, FAILED)


def deadline_s(context: Context) -> float:
    """Return the wait for the workers, and the time for what is asked of them."""
    return context.options.rendezvous_timeout_s + MARGIN_S


@check("mpi", rules=RULES, timeout_s=deadline_s, profile="standard", waits_for_nodes=True)
def mpi(context: Context) -> Outcome:
    """Does mpirun reach every host of this job, and do the ranks reach each other?"""
    injected = read_injected(context.environ)
    if not injected.hostfile or injected.role == "worker":
        raise Skip("this is not the launcher of an MPI job")
    if context.options.scope == "node":
        raise Skip("other hosts are asked with --scope gang")
    from trainer_agent.mpi.prepare import read_plan
    from trainer_agent.mpi.workers import Access, reach

    try:
        plan = read_plan(("true",), context.environ, python=context.python, verified=False)
        with reach(plan, Access(), context.host, timeout_s=context.options.rendezvous_timeout_s) as workers:
            return _look(plan, workers)
    except RetryError as error:
        return Outcome("not all workers are there", (MISSING.found(error.message, hosts=_names(error)),))
    except FatalError as error:
        return Outcome("mpirun cannot be used", (UNUSABLE.found(f"{error.message}. {error.hint}", code=error.code),))


def _names(error: AgentError) -> list[str]:
    return list(getattr(error, "missing", ()))


def _look(plan: Plan, workers: Workers) -> Outcome:
    said = ask_all(plan, workers)
    measured: dict[str, Any] = {
        "mpi": f"{plan.implementation.kind} {plan.implementation.version}",
        "hosts": {name: dict(each.facts) for name, each in said.items()},
    }
    findings = [*_refusals(said), *_versions(plan, said), *_devices(plan, said)]
    if any(finding.severity is Severity.ERROR for finding in findings):
        return Outcome(findings[0].message, tuple(findings), measured)
    run = add_up(plan, workers, plan.hosts, timeout_s=all_s(plan.hosts))
    measured |= {"ranks": run.census.size, "placed": run.census.count(), "all_reduce_s": run.seconds}
    findings += _all_reduce(plan, workers, run)
    return Outcome(f"{run.census.size} ranks on {len(said)} hosts", tuple(findings), measured)


def _nodes(hosts: Iterable[str], named: Iterable[str]) -> list[dict[str, Any]]:
    """Return hosts with their place in the hostfile, which is what an MPI job has for a node rank."""
    place = {name: number for number, name in enumerate(hosts)}
    return [{"name": name, "node_rank": place[name]} for name in named]


def _refusals(said: Mapping[str, Said]) -> list[Finding]:
    found = []
    for rule, denied in ((REFUSED, True), (UNREACHABLE, False)):
        hosts = {name: each.refusal for name, each in said.items() if each.refusal and each.denied is denied}
        if hosts:
            told = listed([f"{name}: {why}" for name, why in hosts.items()])
            found.append(rule.found(f"ssh fails to {told}", nodes=_nodes(said, hosts)))
    return found


def _versions(plan: Plan, said: Mapping[str, Said]) -> list[Finding]:
    found = []
    wanted = f"{plan.implementation.kind} {plan.implementation.version}"
    versions = {name: str(each.facts.get("mpi") or "no mpirun") for name, each in said.items() if each.facts}
    if odd := odd_ones(versions, wanted):
        told = listed([f"{name} has {version}" for name, version in odd.items()])
        found.append(VERSIONS.found(f"{told}; the launcher has {wanted}", nodes=_nodes(said, odd)))
    agents = {n: str(each.facts.get("agent", "none")) if each.facts else "none" for n, each in said.items()}
    if odd := odd_ones({n: agent for n, agent in agents.items() if not said[n].refusal}, __version__):
        told = listed([f"{name} has {version}" for name, version in odd.items()])
        found.append(AGENT.found(f"trainer-agent: {told}; the launcher has {__version__}", hosts=list(odd)))
    return found


def _devices(plan: Plan, said: Mapping[str, Said]) -> list[Finding]:
    slots = {entry.name: entry.slots for entry in plan.hosts.entries}
    counts = {name: int(each.facts.get("devices", 0)) for name, each in said.items() if each.facts}
    short = {name: count for name, count in counts.items() if count < slots[name]}
    if not short or not any(counts.values()):
        return []
    told = listed([f"{name} has {count} for {slots[name]} slots" for name, count in short.items()])
    usual = most_common({name: str(count) for name, count in counts.items()})
    if len(short) == len(counts):
        return [SLOTS.found(f"visible devices: {told}", hosts=list(short))]
    return [DEVICES.found(f"visible devices: {told}; most hosts have {usual}", nodes=_nodes(said, short))]


def _all_reduce(plan: Plan, workers: Workers, run: Run) -> list[Finding]:
    if not run.problem:
        return []
    if len(run.wrong_hosts) == 1:
        return [WRONG.found(f"{run.problem} on {run.wrong_hosts[0]}", nodes=_nodes(workers.addresses, run.wrong_hosts))]
    found, names = find_culprits(plan, workers)
    culprits = [names[number] for number in found.nodes]
    if culprits:
        return [HOST.found(f"{listed(culprits)} with others: {run.problem}", nodes=_nodes(workers.addresses, culprits))]
    pairs = [f"{names[a]} and {names[b]}" for a, b in (*found.links, *found.undetermined)]
    between = f"; what fails is between {listed(pairs)}" if pairs else "; every pair of hosts passes"
    return [FAILED.found(run.problem + between, pairs=pairs)]
