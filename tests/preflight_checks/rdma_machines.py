"""
Machines with RDMA, laid out as their /sys and /dev are.

After listings of real ones: gpud (board MT_0000000838, counters), imbue-ai/cluster-health (Ethernet cards with a second
port that nobody uses), NVSentinel and rdma-core (EFA says ACTIVE always, its link layer is `Unknown`), node_exporter
(functions of a ConnectX-7 that Fabric Manager owns: EINVAL and a line in dmesg for each counter).
"""

import os
from dataclasses import dataclass, field

from trainer_agent.testing import FakeHost

CX7_IB, CX7_ROCE, CX6_ETH, MEZZ = "MT_0000000838", "MT_0000001244", "MT_0000000359", "NVD0000000054"
NDR, HDR, ETH400, ETH200, ETH100 = (
    "400 Gb/sec (4X NDR)",
    "200 Gb/sec (4X HDR)",
    "400 Gb/sec (4X NDR)",
    "200 Gb/sec (4X HDR)",
    "100 Gb/sec (4X EDR)",
)
STATES = {"DOWN": "1: DOWN", "INIT": "2: INIT", "ARMED": "3: ARMED", "ACTIVE": "4: ACTIVE"}
PHYSICAL = {"DOWN": "2: Polling", "INIT": "5: LinkUp", "ARMED": "5: LinkUp", "ACTIVE": "5: LinkUp"}
COUNTERS = {
    "VL15_dropped": 0,
    "excessive_buffer_overrun_errors": 15,
    "link_downed": 255,  # it sticks there
    "link_error_recovery": 3,
    "local_link_integrity_errors": 0,
    "port_rcv_data": 205128687774249,
    "port_rcv_errors": 12,
    "port_rcv_packets": 240037171331,
    "port_rcv_remote_physical_errors": 0,
    "port_xmit_data": 205143497464492,
    "port_xmit_discards": 65535,
    "port_xmit_wait": 4294967295,
    "symbol_error": 7,
    "unicast_rcv_packets": 240037171331,
}
HW_COUNTERS = {
    "lifespan": 10,
    "local_ack_timeout_err": 41,
    "out_of_sequence": 7,
    "packet_seq_err": 3,
    "req_transport_retries_exceeded": 1,
    "rnr_nak_retry_err": 0,
    "rx_icrc_encapsulated": 2,
}
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


class RdmaHost(FakeHost):
    """A machine on which things happen while the check waits: `later` is what it does, once."""

    def __init__(self, root, *, later=None, **how):
        super().__init__(root, **how)
        self.later = later

    def sleep(self, seconds):
        super().sleep(seconds)
        if self.later:
            later, self.later = self.later, None
            later(self)


@dataclass
class Nic:
    """One device as /sys shows it; `forbidden` counters are pipes without a writer: whoever opens them hangs."""

    name: str
    pci: str
    board: str | None = CX7_IB
    layer: str = "InfiniBand"
    state: str = "ACTIVE"
    physical: str | None = None
    rate: str = NDR
    driver: str = "mlx5_core"
    model: str = "15B3:1021"
    ports: int = 1
    net: str | None = None
    operstate: str = "up"
    mtu: int = 4092
    flags: str = "0x1003"
    virtual: bool = False
    forbidden: bool = False
    refused: bool = False
    gids: tuple | None = None
    counters: dict = field(default_factory=lambda: dict(COUNTERS))
    verbs: bool = True

    def default_gids(self):
        number = int(self.name.rpartition("_")[2]) if "_" in self.name else 1
        local = f"fe80:0000:0000:0000:5aa2:e1ff:fe03:{number:04x}"
        if self.layer == "Ethernet":
            return (local, local, f"0000:0000:0000:0000:0000:ffff:0a00:{number + 1:04x}")
        return (local,)

    def lay_out(self, host, index):
        base = f"/sys/class/infiniband/{self.name}"
        event = f"DRIVER={self.driver}\nPCI_CLASS=20700\nPCI_ID={self.model}\nPCI_SUBSYS_ID=15B3:0041\n"
        host.put(f"{base}/device/uevent", f"{event}PCI_SLOT_NAME={self.pci}\n")
        host.put(f"{base}/device/numa_node", f"{0 if index < 4 else 1}\n")
        host.put(f"{base}/node_guid", f"5aa2:e103:002a:{index:04x}\n")
        host.put(f"{base}/fw_ver", "28.39.2048\n")
        if self.board:
            host.put(f"{base}/board_id", f"{self.board}\n")
        if self.virtual:
            host.put(f"{base}/device/physfn/uevent")
        if self.net:
            for name, text in (("operstate", self.operstate), ("mtu", self.mtu), ("flags", self.flags)):
                host.put(f"{base}/device/net/{self.net}/{name}", f"{text}\n")
            host.put(f"{base}/device/net/{self.net}/carrier", f"{int(self.operstate == 'up')}\n")
        if self.verbs:
            host.put(f"/sys/class/infiniband_verbs/uverbs{index}/ibdev", f"{self.name}\n")
            host.put(f"/dev/infiniband/uverbs{index}")
        for number in range(1, self.ports + 1):
            self.lay_out_port(host, f"{base}/ports/{number}", index)

    def lay_out_port(self, host, base, index):
        host.put(f"{base}/state", f"{STATES.get(self.state, self.state)}\n")
        host.put(f"{base}/phys_state", f"{self.physical or PHYSICAL[self.state]}\n")
        host.put(f"{base}/rate", f"{self.rate}\n")
        host.put(f"{base}/link_layer", f"{self.layer}\n")
        host.put(f"{base}/lid", f"{'0x%x' % (index + 17) if self.layer == 'InfiniBand' else '0x0'}\n")
        held = self.default_gids() if self.gids is None else self.gids
        for number in range(8):
            host.put(f"{base}/gids/{number}", f"{held[number] if number < len(held) else NO_GID}\n")
            if number < len(held):
                host.put(f"{base}/gid_attrs/types/{number}", "IB/RoCE v1\n" if number % 2 == 0 else "RoCE v2\n")
        for folder, counters in (("counters", self.counters), ("hw_counters", HW_COUNTERS)):
            for name, value in counters.items():
                put_counter(host, f"{base}/{folder}/{name}", value, forbidden=self.forbidden, refused=self.refused)


def put_counter(host, path, value, *, forbidden=False, refused=False):
    """Write a counter; a refused one cannot be read, as with EINVAL."""
    real = host.path(path)
    if forbidden:
        real.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(real)
    elif refused:
        real.mkdir(parents=True)  # EISDIR stands for EINVAL: open works, read does not
    else:
        host.put(path, f"{value}\n")


def lay_out(host, nics):
    for index, nic in enumerate(nics):
        nic.lay_out(host, index)
    return host


def ndr():
    """Eight InfiniBand cards of 400 Gb/s, one for each GPU."""
    buses = ("18", "40", "4f", "5e", "9a", "c0", "ce", "dc")
    return [Nic(f"mlx5_{n}", f"0000:{bus}:00.0") for n, bus in enumerate(buses)]


def roce():
    """Eight RoCE cards of 400 Gb/s, two of 200 Gb/s for storage with an unused second port, and a bond of 100 Gb/s."""
    how = {"layer": "Ethernet", "board": CX7_ROCE, "rate": ETH400, "mtu": 9000}
    compute = [Nic(f"mlx5_{n}", f"0000:{n + 16:x}:00.0", net=f"eth{n}", **how) for n in range(8)]
    how = {"layer": "Ethernet", "board": CX6_ETH, "rate": ETH200, "mtu": 9000}
    storage = [Nic(f"mlx5_{8 + n}", f"0000:{n + 64:x}:00.0", net=f"sto{n}", **how) for n in range(2)]
    unused = [
        Nic(f"mlx5_{10 + n}", f"0000:{n + 64:x}:00.1", net=f"off{n}", **how, state="DOWN", physical="3: Disabled")
        for n in range(2)
    ]
    bond = Nic("mlx5_bond_0", "0000:80:00.0", board="MT_0000000437", layer="Ethernet", rate=ETH100, net="bond0")
    return [*compute, *storage, *unused, bond]


def efa():
    """The 32 devices of a p5.48xlarge; they have no net device of their own where they are EFA-only."""
    how = {"driver": "efa", "model": "1D0F:EFA2", "board": None, "layer": "Unknown", "rate": ETH100, "forbidden": True}
    return [
        Nic(f"rdmap{79 + n}s0", f"0000:{n + 79:02x}:00.0", gids=("fe80:0000:0000:0000:00bf:f5ff:fe02:e2b0",), **how)
        for n in range(32)
    ]


def with_mezzanine():
    """An HGX B200: beside its cards, functions that Fabric Manager owns; all are down, and no counter may be read."""
    owned = [
        Nic(
            f"mlx5_{8 + n}",
            f"0000:05:00.{n}",
            board=MEZZ,
            state="DOWN",
            forbidden=True,
            net=f"ibp5s0f{n}",
            flags="0x1002",
        )
        for n in range(4)
    ]
    return [*ndr(), *owned]


def virtual_function():
    """A pod with one virtual function, whose counters are not there to be read."""
    return [
        Nic(
            "mlx5_4",
            "0000:86:00.2",
            layer="Ethernet",
            board=CX7_ROCE,
            model="15B3:101E",
            virtual=True,
            net="net1",
            mtu=9000,
            counters=dict.fromkeys(COUNTERS, "N/A (no PMA)"),
        )
    ]


def cards_with_an_unused_port():
    """Eight InfiniBand cards, and two Ethernet cards that each use one port of two, not the same one."""
    how = {"board": CX6_ETH, "layer": "Ethernet", "rate": ETH100, "mtu": 1500}
    spare = {"state": "DOWN", "physical": "3: Disabled"}
    return [
        *ndr(),
        Nic("mlx5_8", "0000:1b:00.0", net="enp27s0f0np0", **how),
        Nic("mlx5_9", "0000:1b:00.1", net="enp27s0f1np1", **how, **spare),
        Nic("mlx5_10", "0000:9d:00.0", net="enp157s0f0np0", **how, **spare),
        Nic("mlx5_11", "0000:9d:00.1", net="enp157s0f1np1", **how),
    ]


HEALTHY = {
    "ndr": ndr,
    "roce": roce,
    "efa": efa,
    "mezzanine": with_mezzanine,
    "virtual-function": virtual_function,
    "unused-ports": cards_with_an_unused_port,
}
