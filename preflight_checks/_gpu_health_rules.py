"""Everything that gpu-health can find."""

from dataclasses import replace

from preflight_checks._recovery import RECOVERY
from preflight_checks._xids import XIDS
from trainer_agent.check import Rule
from trainer_agent.errors import Action, Severity

CORDON = "cordon this node and reset the GPU (`nvidia-smi --gpu-reset`) or reboot; if it comes back, replace the board"
NEXT_RESET = "nothing now: reset the GPU when the node is free"
WITH_RECOVERY = "do what gpu-recovery-wanted says of this GPU: it is done with by the same reset"

GONE = Rule(
    "gpu-lost",
    when="a GPU answers that it is lost (fell off the bus) or wants a reset, at the first question or at a later one",
    hint="cordon this node, look at `dmesg | grep -i xid`, and reset the GPU or reboot",
    action=Action.RESCHEDULE,
    source="NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED",
)
REMAP_FAILED = Rule(
    "row-remap-failed",
    when="remapping a row of memory failed",
    hint="cordon this node and replace the board",
    action=Action.RESCHEDULE,
    source="gcm, gpud, azurehpc-health-checks and NVIDIA's memory error management guide agree",
)
REMAP_PENDING = Rule(
    "row-remap-pending",
    when="a row of memory will be remapped at the next reset; an error where the page may be used till then (compute "
    "capability 8.6 and 8.9) and there were uncorrected errors of DRAM since the driver was loaded",
    hint=NEXT_RESET,
    severity=Severity.WARNING,
    source="NVIDIA's memory error management guide: what is pending does not harm further work, as the page is taken "
    "offline, except on GA10x and AD10x",
)
# Row remapping without dynamic page offlining (the guide's table of supported GPUs): A10, A40, L4, L40S, RTX.
NOT_OFFLINED = ((8, 6), (8, 9))
REMAP_FIRST = replace(
    REMAP_PENDING,
    hint="cordon this node and reset the GPU (`nvidia-smi --gpu-reset`) or reboot: until then it may use the row",
    severity=Severity.ERROR,
    action=Action.RESCHEDULE,
)
REMAPPED = Rule(
    "rows-remapped-many",
    when="more than 512 rows were remapped for uncorrected errors",
    hint="replace the board when the node is free",
    severity=Severity.WARNING,
    source="azurehpc-health-checks",
)
BANKS = Rule(
    "row-banks-used-up",
    when="a bank of memory has no spare row left",
    hint="replace the board when the node is free: the next error in that bank cannot be remapped",
    severity=Severity.WARNING,
    source="NVML's row remapper histogram",
)
RETIRED = Rule(
    "pages-retired-many",
    when="60 or more pages of memory are retired (GPUs before Ampere)",
    hint="cordon this node and replace the board",
    action=Action.RESCHEDULE,
    source="NVIDIA, Dynamic Page Retirement",
)
RETIRED_PENDING = Rule(
    "page-retirement-pending",
    when="a page of memory will be retired at the next reset for errors that were corrected (GPUs before Ampere)",
    hint=NEXT_RESET,
    severity=Severity.WARNING,
    source="NVIDIA, Dynamic Page Retirement",
)
DOUBLE_BIT = Rule(
    "page-retirement-blocks",
    when="there were uncorrected errors of DRAM since the driver was loaded, and a page of memory waits to be retired "
    "(GPUs before Ampere)",
    hint="cordon this node and reload the driver, or reboot: until then no program gets a CUDA context on this GPU",
    action=Action.RESCHEDULE,
    source="NVIDIA, Dynamic Page Retirement: no further context is created before a double-bit error is mapped out",
)
REPAIR = Rule(
    "gpu-repair-pending",
    when="a memory channel or a TPC will be repaired at the next reset (from driver 580 on)",
    hint=NEXT_RESET,
    severity=Severity.WARNING,
    source="nvmlDeviceGetRepairStatus",
)
SRAM = Rule(
    "ecc-sram-uncorrected",
    when="there were uncorrected errors of SRAM since the driver was loaded",
    hint=CORDON,
    action=Action.RESCHEDULE,
    source="gcm and azurehpc-health-checks: more than 0; SRAM has no spare rows",
)
SRAM_EXCEEDED = Rule(
    "ecc-sram-threshold",
    when="the driver says that SRAM errors crossed its threshold; where it does not tell, more than 4 ever",
    hint="cordon this node and replace the board",
    action=Action.RESCHEDULE,
    source="nvmlDeviceGetSramEccErrorStatus; ml-engineering: more than 4 is a case for a new board",
)
DRAM = Rule(
    "ecc-dram-uncorrected",
    when="there were uncorrected errors of DRAM since the driver was loaded, and no row waits to be remapped",
    hint="nothing now: the rows are remapped; reset the GPU when the node is free",
    severity=Severity.WARNING,
    source="gcm fails on it, gpud ignores it",
)
ECC_RISING = Rule(
    "ecc-dram-rising",
    when="uncorrected errors of DRAM rose while the check ran",
    hint=CORDON,
    action=Action.RESCHEDULE,
    source="errors of an idle GPU will not stop when it works",
)
ECC_CORRECTED = Rule(
    "ecc-corrected-many",
    when="more than 50 million errors of DRAM were corrected since the driver was loaded",
    hint="watch this GPU; replace the board when uncorrected errors follow",
    severity=Severity.WARNING,
    source="gcm",
)
ECC_OFF = Rule(
    "ecc-off",
    when="ECC is off on a model that comes with it",
    hint="run `nvidia-smi --ecc-config=1` on this node and reboot: errors now go unseen into the training",
    severity=Severity.WARNING,
    source="nvmlDeviceGetEccMode",
)
VBIOS = Rule(
    "vbios-differs",
    when="a board has another VBIOS than most boards of its name in this node",
    hint="bring the firmware of all boards to one version when the node is free",
    severity=Severity.WARNING,
    source="a comparison within the node",
)
PERSISTENCE = Rule(
    "persistence-off",
    when="persistence mode is off",
    hint="start nvidia-persistenced on the node: without it the first use of a GPU takes seconds",
    severity=Severity.INFO,
    source="healthy B200 nodes had it off; NVSentinel: not worth a drain",
)
COMPUTE_PROHIBITED = Rule(
    "compute-prohibited",
    when="the compute mode lets nobody use the GPU",
    hint="run `nvidia-smi --compute-mode=0` on this node, or take another",
    action=Action.RESCHEDULE,
    source="CUDA ends with `all CUDA-capable devices are busy or unavailable`",
)
COMPUTE_EXCLUSIVE = Rule(
    "compute-exclusive",
    when="the compute mode lets a single process use the GPU",
    hint="run `nvidia-smi --compute-mode=0` on this node, unless one process for each GPU is all that the job has",
    severity=Severity.WARNING,
    source="a second process, such as a data loader on the GPU, is refused",
)
RULES = (
    *(GONE, RECOVERY, REMAP_FAILED, REMAP_PENDING, REMAPPED, BANKS, RETIRED, RETIRED_PENDING, DOUBLE_BIT, REPAIR),
    *(SRAM, SRAM_EXCEEDED, DRAM, ECC_RISING, ECC_CORRECTED, ECC_OFF, *XIDS),
    *(VBIOS, PERSISTENCE, COMPUTE_PROHIBITED, COMPUTE_EXCLUSIVE),
)
