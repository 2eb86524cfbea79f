"""What /sys says of the RDMA ports of this machine; states, rates and addresses only, no counter is read here."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preflight_checks.environment import chosen
from trainer_agent.env import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainer_agent.check import Context, Rule
    from trainer_agent.errors import Finding
    from trainer_agent.host import Host

ROOT = "/sys/class/infiniband"
VERBS = "/sys/class/infiniband_verbs"
NODES = "/dev/infiniband"
EXCLUDE = "TRAINER_AGENT_RDMA_EXCLUDE"
UNREADABLE, DOWN, INIT, ARMED, ACTIVE = 0, 1, 2, 3, 4  # enum ib_port_state
AMAZON = "1D0F"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True)
class Port:
    """
    One port of an RDMA device.

    Args:
        board: the model: its board id, else PCI vendor, device and subsystem.
        card: PCI address without the function; the ports of one card share it.
        virtual: whether it is an SR-IOV virtual function.
        state: as the kernel numbers it, 0 when it cannot be read; that of EFA is its net device's.
        layer: `InfiniBand`, `Ethernet` (RoCE) or `EFA`.
        rate: `400 Gb/sec (4X NDR)`.
        gids: addresses that are not zero.
        mtu: of the net device, None when this network namespace has none.
        enabled: whether somebody has set the net device up, None when that is not known.
    """

    device: str
    number: int
    board: str = ""
    card: str = ""
    pci: str = ""
    virtual: bool = False
    state: int = UNREADABLE
    phys_state: str = ""
    layer: str = ""
    rate: str = ""
    lid: str = ""
    gids: tuple[str, ...] = ()
    gid_types: tuple[str, ...] = ()
    mtu: int | None = None
    enabled: bool | None = None
    firmware: str = ""
    node_guid: str = ""
    numa_node: int | None = None

    @property
    def name(self) -> str:
        """Return the name as NCCL_IB_HCA knows it."""
        return f"{self.device}:{self.number}"

    @property
    def label(self) -> str:
        """Return what tells this port from all others."""
        return f"{self.device} port {self.number}" + (f" ({self.pci})" if self.pci else "")

    @property
    def id(self) -> dict[str, Any]:
        """Return the same for the evidence of a finding."""
        return {"device": self.device, "port": self.number}

    @property
    def active(self) -> bool:
        """Return whether it carries data."""
        return self.state == ACTIVE

    @property
    def gbps(self) -> float | None:
        """Return its rate in Gb/s."""
        try:
            return float(self.rate.split()[0])
        except (IndexError, ValueError):
            return None

    @property
    def routable(self) -> bool:
        """Return whether it has an address that is not link-local."""
        return any(not gid.startswith("fe80") for gid in self.gids)


def devices(host: Host) -> list[str]:
    """Return the names of the RDMA devices, mlx5_2 before mlx5_10."""
    return sorted(host.names(ROOT), key=lambda name: [(len(part), part) for part in name.split("_")])


def read_ports(host: Host, names: Iterable[str]) -> list[Port]:
    """Return all ports of some devices."""
    return [port for name in names for port in _device(host, name)]


def used_ports(context: Context, ports: Sequence[Port]) -> list[Port]:
    """
    Return the ports that NCCL would choose among in this container.

    NCCL_IB_HCA may leave some out; and where the container was given device nodes, a device without one is somebody
    else's.
    """
    setting = context.environ.get("NCCL_IB_HCA", "").strip()
    off = context.environ.get("NCCL_IB_DISABLE", "").strip() == "1"
    ours = _with_nodes(context.host)
    taken = set(chosen(setting, [port.name for port in ports])) if setting else {port.name for port in ports}
    return [
        port
        for port in ports
        if (port.layer == "EFA" or (not off and port.name in taken)) and (ours is None or port.device in ours)
    ]


def named(environ: Mapping[str, str]) -> list[str]:
    """Return the entries of NCCL_IB_HCA when it says what to use, nothing when it says what not to use."""
    setting = environ.get("NCCL_IB_HCA", "").strip()
    if setting.startswith("^"):
        return []
    return [entry.strip() for entry in setting.removeprefix("=").split(",") if entry.strip()]


def is_named(port: Port, environ: Mapping[str, str]) -> bool:
    """Return whether NCCL_IB_HCA has this very device, or this port of it, and no mere prefix."""
    return any(entry in (port.device, port.name) for entry in named(environ))


def excluded(environ: Mapping[str, str]) -> set[str]:
    """Return the devices that nobody shall look at."""
    return {name.strip() for name in environ.get(EXCLUDE, "").split(",") if name.strip()}


def absent(environ: Mapping[str, str], ports: Sequence[Port]) -> list[str]:
    """Return the entries of NCCL_IB_HCA that no port fits."""
    exact = "=" if environ.get("NCCL_IB_HCA", "").strip().startswith("=") else ""
    names, left_out = [port.name for port in ports], excluded(environ)
    wanted = [entry for entry in named(environ) if entry.partition(":")[0] not in left_out]
    return [entry for entry in wanted if not chosen(exact + entry, names)]


def alike(ports: Iterable[Port]) -> list[list[Port]]:
    """Return the ports in groups that should be equal: same board, same link layer."""
    groups: dict[tuple[str, str, bool], list[Port]] = defaultdict(list)
    for port in ports:
        groups[port.board, port.layer, port.virtual].append(port)
    return list(groups.values())


def usual(values: Iterable[float]) -> tuple[float, int]:
    """Return the most common value and how often it occurs; of two as common, the larger."""
    count, value = max((count, value) for value, count in Counter(values).items())
    return value, count


def found_on(said: Iterable[tuple[Rule, Port, str, dict[str, Any]]]) -> list[Finding]:
    """Return a finding for each thing said by each rule, with all ports that it is said of."""
    together: dict[tuple[Rule, str], list[tuple[Port, dict[str, Any]]]] = defaultdict(list)
    for rule, port, text, evidence in said:
        together[rule, text].append((port, evidence))
    findings = []
    for (rule, text), rows in together.items():
        labels = ", ".join(port.label for port, _ in rows)
        findings.append(rule.found(f"{labels}: {text}", **rows[0][1], nics=[port.id for port, _ in rows]))
    return findings


def _with_nodes(host: Host) -> set[str] | None:
    """Return the devices that have a node in /dev, None when there is no node at all or they cannot be told apart."""
    nodes = [name for name in host.names(NODES) if name.startswith("uverbs")]
    names = {(host.read(f"{VERBS}/{node}/ibdev") or "").strip() for node in nodes} - {""}
    return names or None


def _device(host: Host, name: str) -> list[Port]:
    base = f"{ROOT}/{name}"
    event = _pairs(host.read(f"{base}/device/uevent") or "")
    pci, model = event.get("PCI_SLOT_NAME", ""), event.get("PCI_ID", "")
    efa = event.get("DRIVER") == "efa" or model.startswith(AMAZON)
    nets = [f"{base}/device/net/{net}" for net in host.names(f"{base}/device/net")]
    numa = whole_number(_line(host, f"{base}/device/numa_node"))
    mtus = [number for net in nets if (number := whole_number(_line(host, f"{net}/mtu"))) is not None]
    shared = {
        "board": _line(host, f"{base}/board_id") or f"{model} {event.get('PCI_SUBSYS_ID', '')}".strip(),
        "card": pci.rpartition(".")[0] or name,
        "pci": pci,
        "virtual": host.exists(f"{base}/device/physfn"),
        "mtu": max(mtus, default=None),
        "enabled": _enabled(host, nets),
        "firmware": _line(host, f"{base}/fw_ver"),
        "node_guid": _line(host, f"{base}/node_guid"),
        "numa_node": numa,
    }
    numbers = sorted(number for n in host.names(f"{base}/ports") if (number := whole_number(n)) is not None)
    return [_port(host, name, number, nets if efa else None, shared) for number in numbers]


def _port(host: Host, name: str, number: int, efa_nets: list[str] | None, shared: dict[str, Any]) -> Port:
    base = f"{ROOT}/{name}/ports/{number}"
    state = whole_number(_line(host, f"{base}/state").partition(":")[0]) or UNREADABLE
    gids = {n: _line(host, f"{base}/gids/{n}") for n in host.names(f"{base}/gids")}
    held = [n for n, gid in gids.items() if gid not in ("", NO_GID)]
    types = {_line(host, f"{base}/gid_attrs/types/{n}") for n in held} - {""}
    return Port(
        device=name,
        number=number,
        # The efa driver always says ACTIVE; where this namespace has its net device, that one tells.
        state=DOWN if efa_nets and not any(_carries(host, net) for net in efa_nets) else state,
        phys_state="" if efa_nets is not None else _line(host, f"{base}/phys_state").partition(":")[2].strip(),
        layer=_line(host, f"{base}/link_layer") if efa_nets is None else "EFA",
        rate=_line(host, f"{base}/rate"),
        lid=_line(host, f"{base}/lid"),
        gids=tuple(gids[n] for n in held),
        gid_types=tuple(sorted(types)),
        **shared,
    )


def _carries(host: Host, net: str) -> bool:
    """Return whether a net device is up; some drivers never say more than `unknown`."""
    return _line(host, f"{net}/operstate") in ("up", "unknown", "") and _line(host, f"{net}/carrier") != "0"


def _enabled(host: Host, nets: list[str]) -> bool | None:
    flags = [text for net in nets if (text := _line(host, f"{net}/flags"))]
    return any(int(text, 16) & 1 for text in flags) if flags else None  # IFF_UP


def _line(host: Host, path: str) -> str:
    return (host.read(path) or "").strip()


def _pairs(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}
