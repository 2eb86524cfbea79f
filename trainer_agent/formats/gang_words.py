"""What a gang's section says in words, for every form alike."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING

from trainer_agent.formats.gang_section import Blamed, State
from trainer_agent.policy import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainer_agent.formats.gang_section import Collective, Gang, Node
    from trainer_agent.policy import Suspect

MOST = 10  # names in one line, and nodes in one list, of a text


def lines(gang: Gang) -> list[str]:
    """Return the gang for a terminal: one line when all is well, else who it was and what to do without."""
    if gang.verdict == Verdict.PASS:
        return [f"gang of {gang.nnodes}: {well(gang)}"]
    return [
        f"gang of {gang.nnodes}: {gang.summary}",
        *([f"  blame: {blame(gang)}"] if gang.blame != Blamed.NONE else []),
        *_not_ready(gang),
        *listed([f"  undetermined: {nodes(u.ranks)}: {u.reason}" for u in gang.undetermined]),
        *(f"  avoid {what}: {', '.join(names)}" for what, names in avoided(gang) if names),
        *([f"  phases: {phases(gang)}"] if gang.phases else []),
    ]


def well(gang: Gang) -> str:
    """Return one line about a gang of which all is well."""
    slowest = max((n.arrived_s or 0 for n in gang.nodes if n.state == State.READY), default=0)
    ready = "all nodes" if not gang.not_ready else states(gang)
    pairs = f"{_passed(gang)} of {len(gang.pairs)} pair tests passed"
    parts = [
        f"{ready} ready in {slowest:.1f} s" if not gang.not_ready else ready,
        *([f"collective {collective(gang.collective)}"] if gang.collective else []),
        *([pairs] if gang.pairs else []),
        *([f"{sum(p.seconds for p in gang.phases):.1f} s in all"] if gang.phases else []),
    ]
    return ", ".join(parts)


def _passed(gang: Gang) -> int:
    return sum(p.passed for p in gang.pairs)


def collective(found: Collective) -> str:
    """Return what all ranks did together, and whether it went well."""
    over = f" over {found.transport}" if found.transport else ""
    return f"{found.backend} {found.ranks} ranks{over} {'passed' if found.passed else 'failed'}"


def states(gang: Gang) -> str:
    """Return how many nodes are in each state, the worst first."""
    return ", ".join(f"{gang.states[s]} {s}" for s in State if gang.states[s])


def blame(gang: Gang) -> str:
    """Return who it was, seen from this node."""
    if gang.blame == Blamed.NONE:
        return "none"
    named = [suspect_name(gang, s) for s in gang.suspects]
    if gang.blame == Blamed.UNDETERMINED:
        named = [nodes(u.ranks) for u in gang.undetermined]
    return f"{gang.blame} - {some(named)}" if named else str(gang.blame)


def suspect_name(gang: Gang, suspect: Suspect) -> str:
    """Return a suspect by the node that it belongs to."""
    if suspect.kind == "node":
        bare = f"node {suspect.node_rank}"  # also the id of one whose host name nobody knows
        return bare if suspect.id == bare else f"{bare} ({suspect.id})"
    of = "" if suspect.kind == "link" else f" of {gang.name(suspect.node_rank)}"
    return f"{suspect.kind} {suspect.id}{of}"


def _not_ready(gang: Gang) -> list[str]:
    return listed(
        [f"  {n.state}: {where(n)}" + (f": {n.note}" if n.note else "") for n in gang.not_ready], what="more not ready"
    )


def where(node: Node) -> str:
    """Return a node with all its names."""
    names = ", ".join(name for name in (node.hostname, node.node, node.address) if name)
    return f"node {node.rank} ({names})" if names else f"node {node.rank}"


def avoided(gang: Gang) -> tuple[tuple[str, Sequence[str]], ...]:
    """Return what the next attempt should do without, by its kind."""
    return ("hosts", gang.avoid.hostnames), ("GPUs", gang.avoid.gpus)


def phases(gang: Gang) -> str:
    """Return how long each phase took."""
    return ", ".join(f"{p.name} {p.seconds:.1f} s" for p in gang.phases)


def affinity(hostnames: Sequence[str]) -> str:
    """Return the part of a pod's specification that keeps it off these nodes of Kubernetes."""
    return f"""\
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - key: kubernetes.io/hostname
              operator: NotIn
              values: {json.dumps(list(hostnames), ensure_ascii=False)}
"""


def nodes(some_ranks: Sequence[int]) -> str:
    """Return nodes by their ranks."""
    return f"node{'s' if len(some_ranks) != 1 else ''} {ranks(some_ranks)}"


def ranks(some_ranks: Iterable[int], *, most: int = 40) -> str:
    """Return ranks in order, neighbours put together, such as `0-2,5`; of very many holes only the first."""
    order = sorted(set(some_ranks))
    runs = [[r for _, r in run] for _, run in groupby(enumerate(order), key=lambda pair: pair[1] - pair[0])]
    shown = ",".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ",".join(map(str, r)) for r in runs[:most])
    left = sum(len(r) for r in runs[most:])
    return shown + (f" and {left} more" if left else "")


def some(names: Sequence[str], *, most: int = MOST) -> str:
    """Return the first names, and how many more there are."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def listed(rows: Sequence[str], *, most: int = MOST, what: str = "more") -> list[str]:
    """Return the first rows, and how many more there are."""
    left = len(rows) - most
    return [*rows[:most], *([f"  and {left} {what}"] if left > 0 else [])]
