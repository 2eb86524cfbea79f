"""Whether all nodes of the job are here; `trainer_agent.gang` does the work, on all of them at once."""

from __future__ import annotations

from preflight_checks._probes import FOLDER
from trainer_agent.check import Context, Outcome, Skip, check
from trainer_agent.gang.compare import SHAPE_DIFFERS
from trainer_agent.gang.peers import at_rank_zero
from trainer_agent.gang.rules import ROLL_CALL


@check("roll-call", rules=(*ROLL_CALL, SHAPE_DIFFERS), program=str(FOLDER / "gang_probe.py"))
def roll_call(context: Context) -> Outcome:
    """Are all nodes of the job here, each of them well, and in reach of the others?"""
    raise Skip(nobody(context))


def nobody(context: Context) -> str:
    """Return why there is nobody to meet."""
    if context.topology.runtime not in ("torch", "plain"):
        return "this is no job of torch"
    if context.topology.single_node:
        return "the job has one node"
    if context.topology.elastic:
        return "the job is elastic: nobody knows how many nodes will come"
    if context.topology.master_addr and not at_rank_zero(context.topology).master_addr:
        place = f"{context.topology.master_addr} (PET_RDZV_BACKEND={context.topology.rdzv_backend})"
        return f"the rendezvous is at {place}, no node of the job: set PET_MASTER_ADDR to rank 0's pod, and they meet"
    if not context.topology.rank_known:
        return "nobody has told this node its rank: give --node-rank or PET_NODE_RANK, and the nodes can meet"
    return "the nodes did not meet" if context.options.gang else "the nodes meet with --scope gang"
