"""The user's own mpirun command: its options, and the programs that it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_agent.env import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ASKING = ("--help", "-h", "-help", "--version", "-V", "-version")  # starts no program
HOSTFILES = ("hostfile", "machinefile", "default-hostfile", "f")
COUNTS = ("n", "np", "c")
# Whoever gives one of these says himself which hosts get how many ranks.
PLACEMENT = (
    *("H", "host", "hosts", "map-by", "rank-by", "N", "npernode", "pernode", "npersocket", "ppr", "rf", "rankfile"),
    *("ppn", "perhost", "grr", "rr", "rankmap", "machine", "hosts-group", "nolocal", "skip-launch-node", "app"),
    *("configfile", "bynode", "byslot", "bycore"),
)
# With these hydra hands ranks no variable of ours.
NO_ENVIRONMENT = ("genvnone", "genvlist", "envnone", "envlist")
VARIABLES = ("genv", "env")
# How many words follow an option: those of Open MPI 4 and 5 (orterun and prterun), MPICH and Intel MPI (hydra).
# `-s` is not among them: one word follows hydra's, none Open MPI's.
TWO = (*("mca", "gmca", "omca", "gomca", "prtemca", "gprtemca", "pmixmca", "gpmixmca", *VARIABLES),)  # name and value
ONE = (
    *HOSTFILES,
    *COUNTS,
    *("H", "host", "hosts", "map-by", "rank-by", "bind-to", "N", "npernode", "npersocket", "ppr", "rf", "rankfile"),
    *("x", "wd", "wdir", "path", "prefix", "timeout", "stdin", "output-filename", "output", "display", "am", "tune"),
    *("app", "cf", "cartofile", "cpu-list", "cpu-set", "cpus-per-proc", "cpus-per-rank", "debugger", "hnp", "dvm"),
    *("launch-agent", "max-restarts", "max-vm-size", "ompi-server", "personality", "preload-files", "report-events"),
    *("report-pid", "report-uri", "xml-file", "xterm", "stream-buffering", "runtime-options", "with-ft", "ppn"),
    *("perhost", "grr", "rr", "genvlist", "envlist", "configfile", "launcher", "bootstrap", "launcher-exec", "rmk"),
    *("bootstrap-exec", "topolib", "membind", "demux", "iface", "prepend-pattern", "outfile-pattern", "usize"),
    *("errfile-pattern", "nameserver", "order-nodes", "localhost", "gpus-per-proc", "memory-alloc-kinds", "rankmap"),
    *("machine", "binding", "hosts-group", "gtool", "gtoolfile", "cpu-bind", "host-list", "pmi-args", "branch-count"),
    *("amca", "forward-signals", "gpu-support", "initial-errhandler", "output-directory", "pset", "set-env", "tmpdir"),
    *("spawn-timeout", "unset-env"),
)
NONE = (
    *("allow-run-as-root", "bind-to-core", "bind-to-socket", "bycore", "bynode", "byslot", "continuous", "debug"),
    *("debug-daemons", "debug-daemons-file", "disable-recovery", "display-allocation", "display-map", "display-topo"),
    *("display-devel-allocation", "display-devel-map", "display-diffable-map", "do-not-launch", "do-not-resolve"),
    *("enable-instant-on-support", "enable-recovery", "fwd-mpirun-port", "get-stack-traces", "index-argv-by-rank"),
    *("leave-session-attached", "merge-stderr-to-stdout", "nolocal", "nooversubscribe", "noprefix", "novm"),
    *("output-proctable", "oversubscribe", "pernode", "report-bindings", "report-child-jobs-separately", "xml", "tv"),
    *("report-state-on-timeout", "set-cwd-to-session-dir", "show-progress", "tag-output", "timestamp-output", "v"),
    *("use-hwthread-cpus", "use-regexp", "q", "quiet", "verbose", "genvnone", "genvall", "envnone", "envall"),
    *("enable-x", "disable-x", "info", "print-all-exitcodes", "profile", "prepend-rank", "l", "pmi-port"),
    *("disable-auto-cleanup", "disable-hostname-propagation", "skip-launch-node", "hybrid-hosts", "silent-abort"),
    *("display-comm", "display-comm-finalize", "hetero-nodes", "parsable", "parseable", "preload-binary"),
    *("print-rank-map", "prepend-timestamp", "prot", "aps", "mps", "stop-on-exec", "stop-in-app"),
    "",  # `--` ends Open MPI's options
)
FOLLOWING = dict.fromkeys(NONE, 0) | dict.fromkeys(ONE, 1) | dict.fromkeys(TWO, 2)


@dataclass(frozen=True)
class Part:
    """
    One program of the command; MPI separates several by a colon.

    Args:
        options: each with its values, such as `("-np", "4")`.
        command: the program and its arguments.
    """

    options: tuple[tuple[str, ...], ...]
    command: tuple[str, ...]

    def values(self, *names: str) -> list[tuple[str, ...]]:
        """Return the values of the options with one of these names, in their order."""
        return [values_of(words) for words in self.options if name_of(words[0]) in names]


@dataclass(frozen=True)
class Asked:
    """
    What the user wrote.

    Args:
        program: `mpirun`, as it was written.
        unknown: an option of which we do not know how many words belong to it; the command of its part begins with it.
    """

    program: str
    parts: tuple[Part, ...]
    unknown: str = ""

    def values(self, *names: str) -> list[tuple[str, ...]]:
        """Return the values of all options with one of these names, in their order."""
        return [values for part in self.parts for values in part.values(*names)]

    def has(self, *names: str) -> bool:
        """Return whether one of these options is given; after an unknown one, whether it may be."""
        left = [word for part in self.parts for word in part.command if self.unknown and word.startswith("-")]
        return bool(self.values(*names)) or any(name_of(word) in names for word in left)

    @property
    def variables(self) -> set[str]:
        """The names of the variables that hydra is told to set; after an unknown option, all that may be such names."""
        set_by_options = [values[0] for values in self.values(*VARIABLES) if values]
        left = [word for part in self.parts for word in part.command if self.unknown]
        return {word.partition("=")[0] for word in (*set_by_options, *left)}

    @property
    def count(self) -> int | None:
        """The number of ranks where every program has one of its own, else None."""
        numbers = [part.values(*COUNTS) for part in self.parts]
        if not all(given and whole_number("".join(given[-1])) for given in numbers):
            return None
        return sum(int(given[-1][0]) for given in numbers)


def parse(script: Sequence[str]) -> Asked:
    """Return what the words of an mpirun command mean."""
    parts, unknown = [], ""
    for words in _split(script[1:]):
        part = _part(words)
        parts.append(part)
        if part.command and part.command[0].startswith("-"):
            unknown = unknown or part.command[0]
    return Asked(script[0], tuple(parts), unknown)


def plain(command: Sequence[str]) -> Asked:
    """Return what starts a command that is no mpirun."""
    return Asked("mpirun", (Part((), tuple(command)),))


def name_of(word: str) -> str:
    """Return an option's name; one dash or two mean the same."""
    return word.lstrip("-").partition("=")[0]


def values_of(option: Sequence[str]) -> tuple[str, ...]:
    """Return an option's values, which may follow it or stand behind an equals sign."""
    _, equals, value = option[0].partition("=")
    return (value,) if equals else tuple(option[1:])


def _split(words: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if word == ":":
            yield part
            part = []
        else:
            part.append(word)
    yield part


def _part(words: Sequence[str]) -> Part:
    """Return options and command, which begins with the option that nobody knows where there is one."""
    options = []
    left = list(words)
    while left and left[0].startswith("-"):
        follow = _following(left)
        if follow is None:
            break
        options.append(tuple(left[: 1 + follow]))
        del left[: 1 + follow]
    return Part(tuple(options), tuple(left))


def _following(words: Sequence[str]) -> int | None:
    """Return how many words belong to the option that comes first, None where nobody knows."""
    name, *values = words
    if "=" in name:
        return 0
    if name_of(name) in VARIABLES and values and "=" in values[0]:
        return 1  # hydra takes `-genv NAME=VALUE`, too
    return FOLLOWING.get(name_of(name))
