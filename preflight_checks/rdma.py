"""The RDMA network: are the ports that training will use up, as fast as their neighbours, and free of errors?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from preflight_checks import _rdma as seen
from preflight_checks import _rdma_rules as known
from preflight_checks._rdma import ACTIVE, ARMED, DOWN, INIT, Port, alike, found_on, is_named, usual
from preflight_checks._rdma_counters import LINK_DOWNED, read_counters, rises
from trainer_agent.check import Context, Outcome, Rule, Skip, check
from trainer_agent.errors import Action, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Said = tuple[Rule, Port, str, dict[str, Any]]

WAIT_S, QUICK_WAIT_S, POLL_S = 10.0, 5.0, 1.0
PAUSE_S, QUICK_PAUSE_S = 1.0, 0.3
# A file of /sys that asks the firmware takes milliseconds; 32 EFA devices have 1,000 of them.
READ_S = 10.0
LEAST_CARDS = 3
STATES = {0: "not readable", DOWN: "DOWN", INIT: "INIT", ARMED: "ARMED", ACTIVE: "ACTIVE", 5: "ACTIVE_DEFER"}


@check("rdma", rules=known.RULES, timeout_s=WAIT_S + PAUSE_S + READ_S)
def rdma(context: Context) -> Outcome:
    """Are the RDMA ports that training will use up, as fast as their neighbours, and free of errors?"""
    names = seen.devices(context.host)
    if not names:
        raise Skip(f"there is no RDMA device: {seen.ROOT} is empty")
    left_out = seen.excluded(context.environ)
    ports, said = _settled(context, [name for name in names if name not in left_out])
    used = seen.used_ports(context, ports)
    said += [*_fewer_ports(used), *_slow(used), *_addresses(context, used), *_mtu(used), *_counted(context, used)]
    findings = [*found_on(said), *_missing(context, ports), *_nodes(context, used), *_gpudirect(context, used)]
    active = [port for port in used if port.active]
    kinds = ", ".join(f"{n} x {kind}" for kind, n in Counter(f"{p.layer} {p.rate}".strip() for p in active).items())
    message = f"{len(active)} of {len(used)} ports that can be used are active{f': {kinds}' if kinds else ''}"
    measured = {"active_ports": len(active), "used_ports": len(used), "ports": [_measured(p, used) for p in ports]}
    return Outcome(message, tuple(findings), measured | {"excluded": sorted(left_out & set(names))})


def _measured(port: Port, used: Sequence[Port]) -> dict[str, Any]:
    row = port.id | {
        "used": port in used,
        "state": STATES.get(port.state, str(port.state)),
        "phys_state": port.phys_state,
        "link_layer": port.layer,
        "rate_gbps": port.gbps,
        "lid": port.lid,
        "gids": len(port.gids),
        "gid_types": list(port.gid_types),
        "mtu_bytes": port.mtu,
        "board": port.board,
        "pci": port.pci,
        "firmware": port.firmware,
        "node_guid": port.node_guid,
        "numa_node": port.numa_node,
    }
    group = next((group for group in alike(used) if port in group), [])
    rates = [p.gbps for p in group if p.active and p.gbps]
    return row | ({"expected_rate_gbps": usual(rates)[0]} if len(rates) > 1 else {})


def _settled(context: Context, names: Sequence[str]) -> tuple[list[Port], list[Said]]:
    """Return the ports, and what is wrong with their states when some time has not mended it."""
    host, quick = context.host, context.options.profile == "quick"
    deadline = host.monotonic() + (QUICK_WAIT_S if quick else WAIT_S)
    while True:
        ports = seen.read_ports(host, names)
        said = list(_states(context, seen.used_ports(context, ports)))
        if all(rule.severity is Severity.INFO for rule, *_ in said) or host.monotonic() >= deadline:
            return ports, said
        host.sleep(POLL_S)


def _states(context: Context, used: Sequence[Port]) -> Iterator[Said]:
    several = context.topology.max_nodes > 1 or any(port.layer == "InfiniBand" for port in used)
    if used and all(port.state == DOWN for port in used) and context.accelerators.count and several:
        yield from ((known.NONE_ACTIVE, port, "none is ACTIVE, wanted one at least", {}) for port in used)
        return
    for group in alike(used):
        nothing_up = not any(port.active for port in used if port.layer == group[0].layer)
        cards = Counter({port.card: 0 for port in group})
        cards.update(port.card for port in group if port.active)
        best, agreeing = usual(cards.values())
        sure = agreeing >= LEAST_CARDS and 2 * agreeing > len(cards)
        usually = f"{agreeing} of {len(cards)} cards of its board have {best:g} active"
        for port in (port for port in group if not port.active):
            off = port.layer == "Ethernet" and port.enabled is False  # InfiniBand carries data without its net device
            expected = cards[port.card] < best and not port.virtual and not off
            if is_named(port, context.environ):
                severity, why = Severity.ERROR, "as NCCL_IB_HCA names it"
            elif port.state in (INIT, ARMED):
                severity = Severity.ERROR if nothing_up or (expected and sure) else Severity.WARNING
                why = "which is for the subnet manager to do"
            elif expected and (sure or port.layer != "Ethernet"):
                severity, why = Severity.ERROR if sure else Severity.WARNING, f"as {usually}"
            else:
                yield known.PORT_UNUSED, port, f"{_words(port)}, and nothing says that it is wanted", {}
                continue
            yield _state_rule(port, severity, retry=nothing_up), port, f"{_words(port)}, wanted ACTIVE, {why}", {}


def _state_rule(port: Port, severity: Severity, *, retry: bool) -> Rule:
    if port.state not in (INIT, ARMED):
        return replace(known.PORT_DOWN, severity=severity)
    return replace(known.NOT_READY, severity=severity, action=Action.RETRY if retry else Action.RESCHEDULE)


def _words(port: Port) -> str:
    physically = f" ({port.phys_state})" if port.phys_state else ""
    return f"it is {STATES.get(port.state, port.state)}{physically}"


def _fewer_ports(used: Sequence[Port]) -> Iterator[Said]:
    for group in alike(used):
        counts = Counter(port.device for port in group)
        best, agreeing = usual(counts.values())
        for port in (port for port in group if agreeing > 1 and 2 * agreeing > len(counts)):
            if counts[port.device] < best:
                yield known.PORTS_FEWER, port, f"its device has no more than {counts[port.device]}, wanted {best:g}", {}


def _slow(used: Sequence[Port]) -> Iterator[Said]:
    for group in alike(port for port in used if port.active and port.gbps):
        best, agreeing = usual(port.gbps or 0 for port in group)
        slow = [port for port in group if (port.gbps or 0) < best]
        sure = agreeing >= LEAST_CARDS and len(slow) == 1 and not slow[0].virtual
        rule = known.RATE_LOW if sure else replace(known.RATE_LOW, severity=Severity.WARNING)
        for port in slow if agreeing > 1 else ():
            text = f"its rate is {port.rate}, wanted {best:g} Gb/sec as {agreeing} others of its board"
            yield rule, port, text, {"rate_gbps": port.gbps, "wanted_gbps": best}


def _addresses(context: Context, used: Sequence[Port]) -> Iterator[Said]:
    for group in alike(port for port in used if port.active and port.layer == "Ethernet"):
        having = [port for port in group if port.gids]
        for port in (port for port in group if not port.gids):
            sure = len(having) > 1 or is_named(port, context.environ)
            rule = known.NO_GID if sure else replace(known.NO_GID, severity=Severity.WARNING)
            yield rule, port, "all entries of its GID table are zero, wanted an address", {}
        if any(port.routable for port in having):
            text = "its GID table has link-local addresses only, wanted the IP address of its net device"
            yield from ((known.LINK_LOCAL, port, text, {}) for port in having if not port.routable)


def _mtu(used: Sequence[Port]) -> Iterator[Said]:
    for group in alike(port for port in used if port.active and port.layer == "Ethernet" and port.mtu):
        best, agreeing = usual(port.mtu or 0 for port in group)
        for port in (port for port in group if port.mtu != best and agreeing > 1):
            yield known.MTU, port, f"its MTU is {port.mtu}, wanted {best:g} as {agreeing} others of its board", {}


def _counted(context: Context, used: Sequence[Port]) -> Iterator[Said]:
    host, quick = context.host, context.options.profile == "quick"
    before = read_counters(host, [port for port in used if port.active and port.layer != "EFA"])
    if not any(before.values()):
        return
    host.sleep(QUICK_PAUSE_S if quick else PAUSE_S)
    for port, risen in rises(host, before).items():
        if LINK_DOWNED in risen:
            text = f"{LINK_DOWNED} rose by {risen[LINK_DOWNED]} while this check ran, wanted 0"
            yield known.FLAPPED, port, text, {"rises": risen}
        elif risen:
            worst = max(risen, key=lambda name: risen[name])
            yield known.ERRORS, port, f"{worst} rose by {risen[worst]} while this check ran, wanted 0", {"rises": risen}


def _missing(context: Context, ports: Sequence[Port]) -> list[Finding]:
    """Compare with what NCCL_IB_HCA names; when nothing of it is here, that is for `environment` to say."""
    missing, count = seen.absent(context.environ, ports), len(seen.named(context.environ))
    if not missing or len(missing) == count:
        return []
    sure = 4 * (count - len(missing)) >= 3 * count
    rule = known.MISSING if sure else replace(known.MISSING, severity=Severity.WARNING)
    here = ", ".join(dict.fromkeys(port.device for port in ports))
    text = f"{', '.join(missing)}: not here although NCCL_IB_HCA names it, wanted beside {here}"
    return [rule.found(text, nics=[{"device": entry.partition(":")[0], "port": None} for entry in missing])]


def _nodes(context: Context, used: Sequence[Port]) -> list[Finding]:
    if not used or any(name.startswith("uverbs") for name in context.host.names(seen.NODES)):
        return []
    seeing = context.accelerators.count > 0
    rule = known.NO_NODES if seeing else replace(known.NO_NODES, severity=Severity.INFO)
    count = len({port.device for port in used})
    return [rule.found(f"{seen.NODES} has no uverbs node, wanted one for each of {count} RDMA devices")]


def _gpudirect(context: Context, used: Sequence[Port]) -> list[Finding]:
    host, accelerators = context.host, context.accelerators
    driver = host.read("/proc/driver/nvidia/version") or ""
    rdma_used = any(port.active and port.layer != "EFA" for port in used)  # the efa driver finds GPU memory by itself
    if not driver or not rdma_used or not accelerators.count or accelerators.kind not in ("nvidia", "mig"):
        return []
    modules = ("nvidia_peermem", "nv_peer_mem")
    if "Open Kernel Module" in driver or any(host.exists(f"/sys/module/{module}") for module in modules):
        return []
    text = "nvidia_peermem is not loaded and the driver is the proprietary one, wanted the module or dma-buf"
    return [known.NO_GPUDIRECT.found(text)]
