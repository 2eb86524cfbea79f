"""Storage: every path that the job needs is written, read back and compared before the GPUs are committed."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight_checks._leftovers import removed
from preflight_checks._throughput import measurable_bytes, throughput
from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Action, Finding, Severity
from trainer_agent.isolation import TimedOutError, run_all
from trainer_agent.process import REAP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trainer_agent.isolation import Answer

GIB = 1 << 30
PROBE_BYTES = 1 << 20
# How much is written to measure the speed of each path, by profile.
MEASURED_BYTES = {"quick": 0, "standard": 64 << 20, "deep": 256 << 20}
MEMORY_SHARE = 8  # a path may lie in memory, which counts as ours
WANTED_MB_PER_S = 10.0
PATH_S = 10.0
# Measuring gives up after 2 s each way, and a slow place takes up to three times that with its last chunk.
MEASURE_S = 10.0
CLEAN_UP_S = 1.0
WANTED_FREE = GIB
WANTED_INODES = 0.01

OPTIONAL = "; a warning when the path is optional"
MISSING = Rule(
    "storage-missing",
    when=f"the path does not exist or is no directory{OPTIONAL}",
    hint="mount the volume at this path in the runtime's pod template, or correct --storage",
    source="KEP-3416: stop for a required path",
)
NOT_WRITABLE = Rule(
    "storage-not-writable",
    when=f"the path is read-only, or this user may not write there{OPTIONAL}",
    hint="check readOnly of the volume mount, and securityContext.fsGroup or runAsUser against `ls -ldn` of the path",
    source="KEP-3416: stop for a required path",
)
RELATIVE = Rule(
    "storage-relative",
    when=f"the path does not begin with /{OPTIONAL}",
    hint="give an absolute path: what a relative one means depends on the container's working directory",
)
HUNG = Rule(
    "storage-hung",
    when=f"writing and reading back 1 MiB took more than 10 s, or 20 s with the speed measured{OPTIONAL}",
    hint="look at the file server and at `dmesg` on this node; the pod can run elsewhere",
    action=Action.RESCHEDULE,
    source="heuristic: a dead NFS server gives no error, it never answers",
)
BROKEN = Rule(
    "storage-io-error",
    when=f"the file system answers with an I/O error{OPTIONAL}",
    hint="look at `dmesg` on this node; the pod can run elsewhere",
    action=Action.RESCHEDULE,
)
CORRUPT = Rule(
    "storage-corrupt",
    when=f"what is read back differs from what was written{OPTIONAL}",
    hint="take this node and volume out of service and check its disk or file server",
    action=Action.RESCHEDULE,
)
FULL = Rule(
    "storage-full",
    when=f"there is no room, no inode, or no quota, for 1 MiB{OPTIONAL}",
    hint="delete files, enlarge the volume, or raise the quota",
    action=Action.RESCHEDULE,
)
LOW = Rule(
    "storage-low",
    when="less than 1 GiB or less than 1 % of the inodes is free",
    hint="delete files or enlarge the volume: a checkpoint may not fit",
    severity=Severity.WARNING,
    source="heuristic",
)
SLOW = Rule(
    "storage-slow",
    when="less than 10 MB/s are written or read (from --profile standard on)",
    hint="look at the load of the file server or disk; a checkpoint of 10 GB takes a quarter of an hour there",
    severity=Severity.WARNING,
    source="heuristic: an order of magnitude below a single hard disk; chunks of up to 8 MiB, each forced to the disk, "
    "and all paths at once",
)
KEPT = Rule(
    "storage-not-removable",
    when="what was written and read back cannot be removed",
    hint="remove the file; if the job removes any, such as old checkpoints, let the volume do so (Mountpoint for S3: "
    "--allow-delete)",
    severity=Severity.WARNING,
    source="buckets and retention policies may allow to write and not to delete",
)
# By errno; all others are I/O errors. Making a file in /proc is ENOENT.
RULES = {
    **dict.fromkeys((errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP), NOT_WRITABLE),
    **dict.fromkeys((errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP), MISSING),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), FULL),
}


@dataclass(frozen=True)
class Target:
    """
    A place that must, or should, be writable.

    Args:
        label: the path as the user knows it.
        paths: tried in turn, the first that works is enough.
        create: whether it will be made, so that its nearest existing parent counts.
    """

    label: str
    paths: tuple[Path, ...]
    required: bool = True
    create: bool = False


class ProbeError(Exception):
    """A path failed its probe: the rule it breaks, and what happened."""

    def __init__(self, rule: Rule, reason: str) -> None:
        super().__init__(rule, reason)
        self.rule = rule
        self.reason = reason


def targets(context: Context) -> list[Target]:
    """Return what to probe, each path once, required ones first."""
    options, environ, place = context.options, context.environ, context.host.path
    found = [Target(p, (place(p),)) for p in options.storage]
    for kind in ("DATASET", "MODEL"):
        if environ.get(f"TRAINER_AGENT_INIT_{kind}_STORAGE_URI", "").strip():
            default = f"/workspace/{kind.lower()}"
            path = environ.get(f"TRAINER_AGENT_INIT_{kind}_OUTPUT_PATH", "").strip() or default
            found.append(Target(path, (place(path),), create=True))
    temporary = [environ.get(n, "") for n in ("TMPDIR", "TEMP", "TMP")] + ["/tmp", "/var/tmp", "/usr/tmp"]
    usable = list(dict.fromkeys(p for p in temporary if p.startswith("/")))
    found.append(Target(usable[0], tuple(place(p) for p in usable)))
    found += [Target(p, (place(p),), required=False) for p in options.optional_storage]
    unique: dict[str, Target] = {}
    for target in found:
        unique.setdefault(target.label, target)
    return list(unique.values())


def deadline_s(context: Context) -> float:
    """Return the time for one path, as all are probed at once, and what it takes to leave dead ones behind."""
    return _path_s(context) + CLEAN_UP_S + 2 * REAP_SECONDS * len(targets(context)) + 1


@check(
    "storage",
    rules=(MISSING, NOT_WRITABLE, RELATIVE, HUNG, BROKEN, CORRUPT, FULL, LOW, SLOW, KEPT),
    timeout_s=deadline_s,
)
def storage(context: Context) -> Outcome:
    """Can every path that the job needs be written and read back, with room to spare?"""
    probe = partial(write_and_read, most=_measured_bytes(context))
    return examine(targets(context), probe=probe, timeout_s=_path_s(context))


def _path_s(context: Context) -> float:
    return PATH_S + (MEASURE_S if _measured_bytes(context) else 0)


def _measured_bytes(context: Context) -> int:
    """Return how much may be written to one path: with little memory or time left, nothing."""
    if context.options.budget_s < PATH_S + MEASURE_S:
        return 0
    most, left = MEASURED_BYTES[context.options.profile], context.limits.memory_left
    return most if left is None else min(most, left // (MEMORY_SHARE * len(targets(context))))


def examine(
    chosen: Sequence[Target],
    *,
    probe: Callable[[Path, str], dict[str, Any]] | None = None,
    timeout_s: float = PATH_S,
) -> Outcome:
    """Probe all targets side by side, each in a child of its own."""
    # Chosen here, so that what a killed child leaves can be removed; one each, as two paths may share a parent.
    names = {target.label: f".trainer-agent-{secrets.token_hex(8)}" for target in chosen}
    calls = [(partial(try_out, t, names[t.label], probe or write_and_read), timeout_s) for t in chosen]
    with removed(lambda: _clean_up_all(chosen, names)):
        answers = run_all(calls)
    failed = [target for target, answer in zip(chosen, answers, strict=True) if answer.error]
    _clean_up_all(failed, names)
    findings = [f for target, answer in zip(chosen, answers, strict=True) for f in _judge(target, answer)]
    measured = {t.label: a.value for t, a in zip(chosen, answers, strict=True) if isinstance(a.value, dict)}
    good = ", ".join(f"{label} {m['free_bytes'] / GIB:.1f} GiB free" for label, m in measured.items())
    return Outcome(f"{len(measured)} of {len(chosen)} paths work: {good}", tuple(findings), {"paths": measured})


def try_out(target: Target, name: str, probe: Callable[[Path, str], dict[str, Any]]) -> dict[str, Any] | ProbeError:
    """In the child: return the measurements of the first path that works, else the first failure."""
    if not target.label.startswith("/"):
        return ProbeError(RELATIVE, "is not absolute")
    failures = []
    for path in target.paths:
        try:
            return probe(_nearest(path) if target.create else path, name)
        except ProbeError as error:
            failures.append(error)
        except OSError as error:
            failures.append(ProbeError(RULES.get(error.errno or 0, BROKEN), _words(path, error)))
    return failures[0]


def _words(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        with suppress(OSError):
            stat = os.statvfs(_nearest(path))
            if stat.f_files and not stat.f_favail:
                return f"has none of its {stat.f_files} inodes left"
    return f"cannot be used: {error.strerror}"


def _nearest(path: Path) -> Path:
    return next((p for p in (path, *path.parents) if p.exists()), path)


def write_and_read(directory: Path, name: str, *, most: int = 0) -> dict[str, Any]:
    """Write 1 MiB to a file in `directory`, read it back, remove it; return what is free, and with `most` the speed."""
    if not directory.is_dir():
        raise ProbeError(MISSING, "is no directory" if directory.exists() else "does not exist")
    kept = round_trip(directory / name)
    stat = os.statvfs(directory)
    free = stat.f_bavail * stat.f_frsize
    size = 0 if kept else measurable_bytes(most, free=free)
    return {
        **({"kept": kept} if kept else {}),
        "free_bytes": free,
        "size_bytes": stat.f_blocks * stat.f_frsize,
        "inodes_free": stat.f_favail,
        "inodes": stat.f_files,
        **(throughput(directory / name, size) if size else {}),
    }


def round_trip(file: Path) -> str:
    """Write a file, read it back and remove it; return why it cannot be removed, empty when it is gone."""
    payload, kept = os.urandom(PROBE_BYTES), ""
    try:
        same = _read_back(file, payload) == payload
    finally:
        try:
            file.unlink(missing_ok=True)
        except PermissionError as error:
            kept = f"{file}: {error.strerror}"
    if not same:
        raise ProbeError(CORRUPT, "gives back other bytes than were written")
    return kept


def _read_back(file: Path, payload: bytes) -> bytes:
    with file.open("xb") as out:
        out.write(payload)
        out.flush()
        os.fsync(out.fileno())
        # Without this the page cache would answer for the disk or the server.
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return file.read_bytes()


def clean_up(target: Target, name: str) -> None:
    """In a child, as a dead server hangs here, too: remove what a killed probe has left."""
    for path in target.paths:
        (_nearest(path) / name).unlink(missing_ok=True)


def _clean_up_all(chosen: Sequence[Target], names: Mapping[str, str]) -> None:
    """Remove what killed probes have left, each path by itself, as a dead server hangs."""
    run_all([(partial(clean_up, target, names[target.label]), CLEAN_UP_S) for target in chosen])


def _judge(target: Target, answer: Answer) -> Iterator[Finding]:
    if isinstance(answer.error, TimedOutError):
        yield _failure(target, HUNG, f"gives {answer.error}")
    elif answer.error:
        raise answer.error  # nothing is known of the path, so this check has no outcome
    elif isinstance(answer.value, ProbeError):
        yield _failure(target, answer.value.rule, answer.value.reason)
    else:
        yield from _low(target.label, answer.value)
        yield from _slow(target.label, answer.value)
        if kept := answer.value.get("kept"):
            yield KEPT.found(f"{target.label} keeps what was written there, wanted gone: {kept}", path=target.label)


def _failure(target: Target, rule: Rule, reason: str) -> Finding:
    severity = Severity.ERROR if target.required else Severity.WARNING
    kind = "required" if target.required else "optional"
    message = f"{target.label} {reason}, wanted a directory that can be written and read back ({kind})"
    return replace(rule, severity=severity).found(message, path=target.label)


def _low(label: str, measured: dict[str, Any]) -> Iterator[Finding]:
    free, size = measured["free_bytes"], measured["size_bytes"]
    if size and free < WANTED_FREE:  # object stores mounted as directories report a size of 0
        yield LOW.found(
            f"{label} has {free / GIB:.2f} GiB free, wanted {WANTED_FREE / GIB:g} GiB", path=label, **measured
        )
    inodes, left = measured["inodes"], measured["inodes_free"]
    if inodes and left < WANTED_INODES * inodes:
        message = f"{label} has {left} of {inodes} inodes free, wanted {WANTED_INODES:.0%}"
        yield LOW.found(message, path=label, **measured)


def _slow(label: str, measured: dict[str, Any]) -> Iterator[Finding]:
    for name, what in (("write_mb_per_s", "written"), ("read_mb_per_s", "read")):
        speed = measured.get(name, WANTED_MB_PER_S)
        if speed < WANTED_MB_PER_S:
            message = f"{label} is {what} at {speed:g} MB/s, wanted {WANTED_MB_PER_S:g} or more"
            yield SLOW.found(message, path=label, **measured)
