"""
The kinds of GPU that the stand-in can be.

Numbers marked [q] are from `nvidia-smi -q` of real nodes (NVIDIA/k8s-test-infra, tests/e2e, drivers 570 and 580), those
marked [d] from data sheets and memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

AMPERE, ADA, HOPPER, BLACKWELL = 7, 8, 9, 10  # NVML_DEVICE_ARCH_*


@dataclass(frozen=True, kw_only=True)
class Model:
    """
    A kind of GPU.

    Args:
        links: NVLink links that it has, `nvlink` their generation; `down` are those that are inactive by design, and
            `switched` says whether a switch is at their other end.
        fabric: `hgx` (a switch in the node), `rack` (several nodes), `absent` (it says that there is none), or `` when
            it does not know the question.
        limits_c: temperatures of shutdown, slowdown and full clocks, and of the memory.
        idle: performance state, SM clock and PCIe generation when nothing runs.
    """

    name: str
    pci_id: int
    architecture: int
    capability: tuple[int, int]
    memory_mib: int
    reserved_mib: int
    banks: int
    power_w: int
    least_w: int
    sm_mhz: int
    memory_mhz: int
    idle: tuple[int, int, int]
    idle_w: float
    limits_c: tuple[int, int, int, int]
    bus_bits: int = 5120
    generation: int = 5
    links: int = 0
    nvlink: int = 4
    down: tuple[int, ...] = ()
    switched: bool = False
    fabric: str = ""
    mig: bool = True
    vbios: str = "96.00.99.00.01"
    inforom: str = "G520.0200.00.05"
    temperature_c: int = 30


A100_SXM = Model(  # [d]; temperatures, clocks, VBIOS and idle of the 40 GiB board [q]
    name="NVIDIA A100-SXM4-80GB",
    pci_id=0x20B210DE,
    architecture=AMPERE,
    capability=(8, 0),
    memory_mib=81920,
    reserved_mib=611,
    banks=1280,  # 640 for each stack of 40 GiB [q]
    power_w=400,
    least_w=100,
    sm_mhz=1410,
    memory_mhz=1593,
    idle=(0, 210, 4),
    idle_w=50,
    limits_c=(92, 89, 85, 95),
    generation=4,
    links=12,
    nvlink=3,
    switched=True,
    vbios="92.00.45.00.03",
    inforom="G506.0200.00.04",
)
# [d]. Without bridges its links are there and down, which other monitors called a fault (FACTS: NVSentinel #1481).
A100_PCIE = replace(
    A100_SXM,
    name="NVIDIA A100 80GB PCIe",
    pci_id=0x20B510DE,
    power_w=300,
    least_w=150,
    memory_mhz=1512,
    idle=(0, 210, 1),
    down=tuple(range(12)),
    switched=False,
)
H100_SXM = Model(  # [q]; the limits are the margin of 58 at 29 degrees, and the offsets 0, -2, -8
    name="NVIDIA H100 80GB HBM3",
    pci_id=0x233010DE,
    architecture=HOPPER,
    capability=(9, 0),
    memory_mib=81559,
    reserved_mib=480,
    banks=2560,
    power_w=700,
    least_w=200,
    sm_mhz=1980,
    memory_mhz=2619,
    idle=(0, 345, 5),
    idle_w=68.9,
    limits_c=(95, 89, 87, 95),
    links=18,
    switched=True,
    fabric="hgx",
)
H100_NVL = replace(  # [d]; 12 of 18 links work by design (FACTS: Azure #162)
    H100_SXM,
    name="NVIDIA H100 NVL",
    pci_id=0x232110DE,
    memory_mib=95830,
    banks=3072,
    bus_bits=6144,
    power_w=400,
    sm_mhz=1785,
    down=(4, 5, 10, 11, 16, 17),
    switched=False,
    fabric="absent",
)
H200_SXM = replace(  # [d]
    H100_SXM, name="NVIDIA H200", pci_id=0x233510DE, memory_mib=143771, banks=3072, memory_mhz=3201, bus_bits=6144
)
B200_SXM = replace(  # [q]; the limits as above, from a margin of 49 at 39 degrees
    H100_SXM,
    name="NVIDIA B200",
    pci_id=0x290110DE,
    architecture=BLACKWELL,
    capability=(10, 0),
    memory_mib=183359,
    reserved_mib=728,
    banks=3840,
    bus_bits=8192,
    power_w=1000,
    sm_mhz=1965,
    memory_mhz=3996,
    idle=(0, 120, 5),
    idle_w=195.8,
    limits_c=(93, 91, 88, 95),
    nvlink=5,
    vbios="97.00.FA.00.09",
    inforom="G525.0220.00.03",
    temperature_c=39,
)
GB200 = replace(  # [q]
    B200_SXM,
    name="NVIDIA GB200",
    pci_id=0x294110DE,
    memory_mib=189471,
    reserved_mib=742,
    banks=3968,
    power_w=1200,
    sm_mhz=2062,
    idle_w=165.9,
    fabric="rack",
    vbios="97.00.B9.00.69",
    inforom="G548.0201.00.06",
    temperature_c=27,
)
L4 = Model(  # [d]; no NVLink, no MIG, an idle link of PCIe generation 1
    name="NVIDIA L4",
    pci_id=0x27B810DE,
    architecture=ADA,
    capability=(8, 9),
    memory_mib=23034,
    reserved_mib=538,
    banks=96,
    power_w=72,
    least_w=40,
    sm_mhz=2040,
    memory_mhz=6251,
    idle=(8, 210, 1),
    idle_w=13,
    limits_c=(99, 96, 94, 105),
    bus_bits=192,
    generation=4,
    mig=False,
    vbios="95.04.29.00.06",
    inforom="G193.0200.00.01",
)
