#!/usr/bin/env python3
# trainer-agent: question="Has the kernel seen a machine check?" profile=quick
"""Find a kernel that has recorded a hardware error since it was started."""

import json
from pathlib import Path

MACHINE_CHECK = 1 << 4  # TAINT_MACHINE_CHECK, Documentation/admin-guide/tainted-kernels.rst


def main() -> None:
    """Print what was found."""
    tainted = int(Path("/proc/sys/kernel/tainted").read_text())
    finding = {
        "code": "machine-check",
        "severity": "error",
        "message": f"the kernel is tainted by a machine check (flags {tainted}, wanted bit 4 clear)",
        "hint": "look at `dmesg | grep -i mce` on this node; have its memory and CPUs tested",
        "action": "reschedule",
        "evidence": {"tainted": tainted},
    }
    findings = [finding] if tainted & MACHINE_CHECK else []
    print(json.dumps({"message": f"taint flags {tainted}", "findings": findings}))


if __name__ == "__main__":
    main()
