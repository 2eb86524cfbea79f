"""Run the ranks of a collective and hear what they say, however they end."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight_checks._gpus import NvmlHungError, read
from preflight_checks._probes import ProbeError
from trainer_agent.accelerators import parse_cuda_visible
from trainer_agent.gang.torch_side import NO_DEBUGGING
from trainer_agent.guarded import run_guarded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight_checks._gpus import Gpu
    from trainer_agent.check import Context

STAGES = ("start", "import", "device", "init", "all-reduce", "all-gather", "timing", "barrier", "destroy", "done")
TORCH_IS_HERE = STAGES.index("device")
NCCL_LINES, NCCL_WIDTH = 5, 300
# What a job, or a torchrun around us, tells its own ranks; torchrun obeys every PET_ variable.
LEAKS = re.compile(
    r"(PET|TORCHELASTIC|TORCH_ELASTIC)_.*|MASTER_(ADDR|PORT)|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|ROLE_NAME"
)
# Ranks on one machine need no other interface than loopback, which needs no name server and no network policy.
OURS = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **NO_DEBUGGING}
# What NCCL writes that says how far it came, and of a log as much as is read: a rank may write one without end.
TELLING = ("NCCL WARN", "nvls channels", "Init START", "Init COMPLETE")
LOG_BYTES = 4 << 20


@dataclass(frozen=True)
class Rank:
    """
    One rank by what it said last.

    Args:
        stage: the one that it entered last, `start` before it said anything.
        at: when, on the monotonic clock.
        error, text: type and words of the exception that ended it.
        code: its exit code, -n when signal n ended it, None when that is not known.
        gpu: the one that it works on.
        facts: everything else that it said.
    """

    number: int
    stage: str = "start"
    at: float = 0.0
    error: str = ""
    text: str = ""
    code: int | None = None
    gpu: Gpu | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return what tells this rank from all others."""
        return f"rank {self.number} on {self.gpu.label}" if self.gpu else f"rank {self.number}"

    @property
    def height(self) -> int:
        """Return how far it came."""
        return STAGES.index(self.stage)


@dataclass(frozen=True)
class Run:
    """
    What became of some ranks.

    Args:
        wait_s: seconds that it may take.
        began, end: on the monotonic clock.
        code: the exit code of what started them.
        problem: why it was killed; empty when it ended by itself.
        hung: whether that was because its time was up.
        log: the lines of NCCL's own that tell something; None where it has written none.
    """

    ranks: tuple[Rank, ...]
    wait_s: float
    began: float = 0.0
    end: float = 0.0
    code: int | None = 0
    stdout: str = ""
    stderr: str = ""
    problem: str = ""
    hung: bool = False
    log: tuple[str, ...] | None = None

    @property
    def words(self) -> str:
        """Return the last line of standard error."""
        return self.stderr.strip().rpartition("\n")[2]

    @property
    def nccl(self) -> list[str]:
        """Return the last warnings of NCCL."""
        return [line[:NCCL_WIDTH] for line in self.log or () if "NCCL WARN" in line][-NCCL_LINES:]


def run_ranks(
    context: Context, argv: Sequence[str], *, count: int, environ: Mapping[str, str], wait_s: float, gpus: Sequence[Gpu]
) -> Run:
    """
    Run a program that starts `count` ranks, in a folder of its own, and return what they said until it ended.

    Raises:
        ProbeError: it cannot be started.
    """
    with scratch(context) as folder:
        given = {**clean(context), **environ, "TMPDIR": str(folder), **_logged(folder)}
        if gpus:  # so that rank n works on the n-th of them
            given["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus)
        words = [word.replace("{folder}", str(folder)) for word in argv]
        began = time.monotonic()
        try:
            limits: dict[str, Any] = {"timeout_s": wait_s, "memory_bytes": context.limits.for_a_program()}
            files: dict[str, Any] = {"cwd": str(folder), "scratch": str(folder), "salvage": lambda: _log_of(folder)}
            ended = run_guarded(words, environ=given, **limits, **files)
        except OSError as error:
            why = error.strerror or error
            raise ProbeError(f"{argv[0]} cannot be started: {why}; --python names another") from error
    ranks = heard(ended.stdout, count, gpus=gpus)
    end, log = began + ended.duration_s, ended.salvaged
    return Run(ranks, wait_s, began, end, ended.code, ended.stdout, ended.stderr, ended.problem, ended.timed_out, log)


def _logged(folder: Path) -> dict[str, str]:
    """Return what has NCCL write a log that nobody's end can lose: libc keeps back what goes to standard output."""
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT", "NCCL_DEBUG_FILE": f"{folder}/nccl.%p"}


def _log_of(folder: Path) -> tuple[str, ...] | None:
    """Return what tells something of what the ranks' NCCLs have written, None where they have written nothing."""
    files = sorted(folder.glob("nccl.*"))
    found: list[str] = []
    for path in files:
        with suppress(OSError), path.open("rb") as file:
            lines = file.read(LOG_BYTES).decode(errors="replace").splitlines()
            found += [line.strip() for line in lines if any(words in line for words in TELLING)]
    return tuple(found) if files else None


def heard(stdout: str, count: int, *, gpus: Sequence[Gpu] = ()) -> tuple[Rank, ...]:
    """Return what `count` ranks said, from lines that are mixed with those of others."""
    ranks = [Rank(number, gpu=gpus[number] if number < len(gpus) else None) for number in range(count)]
    for line in stdout.splitlines():
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            said = json.loads(line)
            known = {key: said.pop(key) for key in ("stage", "at", "error", "text", "code") if key in said}
            number = said.pop("rank")
            ranks[number] = replace(ranks[number], **known, facts={**ranks[number].facts, **said})
    return tuple(ranks)


def clean(context: Context) -> dict[str, str]:
    """Return the environment without what the job tells its own ranks."""
    kept = {name: value for name, value in context.environ.items() if not LEAKS.fullmatch(name)}
    return kept | OURS


@contextmanager
def scratch(context: Context) -> Iterator[Path]:
    """
    Give a folder that is removed afterwards.

    Raises:
        ProbeError: nothing can be written here, as with a read-only root and no volume at /tmp.
    """
    places = [place for place in (context.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm") if place]
    folder = next(filter(None, map(_folder_in, places)), None)
    if folder is None:
        raise ProbeError(f"none of {', '.join(places)} can be written")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _folder_in(place: str) -> Path | None:
    with suppress(OSError):
        return Path(tempfile.mkdtemp(prefix="trainer-agent-", dir=place))
    return None


def visible_gpus(context: Context, *groups: str) -> list[Gpu]:
    """Return the GPUs that ranks see, in the order of their numbers; none where NVML does not say."""
    try:
        reading = read(context, *groups)
    except NvmlHungError:
        return []
    by_uuid = {gpu.uuid: gpu for gpu in reading.gpus if gpu.uuid}
    seen = parse_cuda_visible(context.environ.get("CUDA_VISIBLE_DEVICES"), list(by_uuid), [])
    return [by_uuid[uuid] for uuid in seen]
