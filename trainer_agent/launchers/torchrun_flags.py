"""torchrun's own command line, as its argparse reads it: what says the same as a PET_* variable, and the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer_agent.errors import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANY, NUMBER = r"(?s:.*)", r"\d{1,9}"
NODES, PROCESSES = rf"{NUMBER}(:{NUMBER})?", rf"{NUMBER}|auto|cpu|gpu|xpu"
# The flags that say who the nodes are, with the values that we understand; torchrun answers for others itself.
TOPOLOGY = {
    "--nnodes": NODES,
    "--nproc-per-node": PROCESSES,
    "--node-rank": NUMBER,
    "--master-addr": ANY,
    "--master-port": NUMBER,
    "--rdzv-backend": ANY,
    "--rdzv-endpoint": ANY,
    "--rdzv-id": ANY,
    "--rdzv-conf": ANY,
}
# All others of torchrun 1.10 to 2.13 that take a value, and those that take none.
OTHERS = {
    "--max-restarts": NUMBER,
    "--monitor-interval": rf"{NUMBER}(\.\d+)?",
    "--start-method": "spawn|fork|forkserver",
    "--shutdown-timeout": NUMBER,
    **dict.fromkeys(("--event-log-handler", "--role", "--log-dir", "--redirects", "--tee", "--local-addr"), ANY),
    **dict.fromkeys(("--local-ranks-filter", "--duplicate-stdout-filters", "--duplicate-stderr-filters"), ANY),
    **dict.fromkeys(("--logs-specs", "--numa-binding", "--signals-to-handle"), ANY),
}
BARE = ("--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank", "--help")
SHORT = {"-r": "--redirects", "-t": "--tee", "-m": "--module", "-h": "--help"}
VALUES = TOPOLOGY | OTHERS
FLAGS = (*VALUES, *BARE)
# argparse takes the beginning of a flag where it is that of one spelling only.
SPELLINGS = tuple(dict.fromkeys(s for flag in FLAGS for s in (flag, f"--{flag[2:].replace('-', '_')}")))
C10D_PORT = 29400  # where torchrun's c10d and etcd listen when the endpoint has no port
LOCAL = "127.0.0.1"  # torchrun's default for --master-addr
STANDALONE = ("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_NODE_RANK")


@dataclass(frozen=True)
class Given:
    """
    What the words after `torchrun` say.

    Args:
        flags: the last value of each flag of the topology, in torchrun's first spelling.
        meeting: the words of those that say how the nodes meet, as they were written.
        rest: all other words, as they were written.
        bare: the flags without a value.
        unknown: the first word that we do not understand; it and what follows is in `rest`.
        script: whether a script or module is named.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
    meeting: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    bare: frozenset[str] = frozenset()
    unknown: str = ""
    script: bool = False

    @property
    def trains(self) -> bool:
        """Whether torchrun would start a script, as far as we understand it."""
        return self.script and not self.unknown and not self.asks

    @property
    def asks(self) -> bool:
        """Whether torchrun is asked for help."""
        return "--help" in self.bare

    @property
    def variables(self) -> dict[str, str]:
        """The flags as the variables that say the same."""
        found = {"PET_" + flag[2:].upper().replace("-", "_"): value for flag, value in self.flags.items()}
        if "--standalone" in self.bare:
            found = {k: v for k, v in found.items() if k not in STANDALONE}
            found |= {"PET_NNODES": "1", "PET_NODE_RANK": "0"}
        return found


def own_torchrun(script: Sequence[str]) -> tuple[tuple[str, ...], Given] | None:
    """Return the words that start torchrun and what follows them, when the user's command is torchrun."""
    if script and script[0].rpartition("/")[2] == "torchrun":
        return tuple(script[:1]), read(script[1:])
    if tuple(script[1:3]) == ("-m", "torch.distributed.run"):
        return tuple(script[:3]), read(script[3:])
    return None


def read(words: Sequence[str]) -> Given:
    """Return what torchrun's own words mean, up to the script, whose options may have the same names."""
    flags: dict[str, str] = {}
    meeting: list[str] = []
    rest: list[str] = []
    bare: set[str] = set()
    left = list(words)
    while left and left[0].startswith("-") and left[0] not in ("-", "--"):
        flag, value, used = _next(left)
        if not used:
            return Given(flags, tuple(meeting), (*rest, *left), frozenset(bare), unknown=left[0])
        mine = flag in TOPOLOGY or flag == "--standalone"
        if flag in TOPOLOGY:
            flags[flag] = value
        elif flag in BARE:
            bare.add(flag)
        if flag != "--nproc-per-node":
            (meeting if mine else rest).extend(left[:used])
        del left[:used]
    script = bool(left[1:] if left[:1] == ["--"] else left)
    return Given(flags, tuple(meeting), (*rest, *left), frozenset(bare), script=script)


def told(script: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with what the user's own torchrun is told by flags; flags win, as with torchrun itself."""
    own = own_torchrun(script)
    said = own[1].variables if own else {}
    env = {**environ, **said}
    if own and "--standalone" in own[1].bare:
        for name in STANDALONE[:-1]:
            env.pop(name, None)
    elif said.keys() & {"PET_MASTER_ADDR", "PET_MASTER_PORT"} and "PET_RDZV_ENDPOINT" not in said:
        env.pop("PET_RDZV_ENDPOINT", None)  # a flag beats the variable that would overrule it
    return env | _defaults(said, env)


def origins_of(script: Sequence[str]) -> dict[str, str]:
    """Return the variables that the flags of the user's own torchrun stand for, with the flag of each."""
    own = own_torchrun(script)
    return {name: _flag_of(name, own[1]) for name in own[1].variables} if own else {}


def _defaults(said: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun takes for a meeting place that no flag and no variable names, or names in part."""
    if said.keys() & {"PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT"} and env.get("PET_RDZV_BACKEND", "static") != "static":
        anywhere = env.get("PET_MASTER_ADDR", "").strip()
        endpoint = env.get("PET_RDZV_ENDPOINT", "").strip() or ("" if anywhere else LOCAL)
        place = f"{endpoint}:{C10D_PORT}" if endpoint and not re.search(r":\d+$", endpoint) else endpoint
        # Its own id where none is given: the endpoint, of which we make one elsewhere, may differ from node to node.
        found = {"PET_RDZV_ENDPOINT": place, "PET_RDZV_ID": env.get("PET_RDZV_ID", "").strip() or "none"}
        return {name: value for name, value in found.items() if value}
    several = said.get("PET_NNODES", "1") not in ("1", "1:1")
    if several and not env.get("PET_MASTER_ADDR", "").strip() and not env.get("PET_RDZV_ENDPOINT", "").strip():
        return {"PET_MASTER_ADDR": LOCAL}
    return {}


def findings(script: Sequence[str], environ: Mapping[str, str]) -> list[Finding]:
    """Return what the flags of the user's own torchrun contradict, and what in them nobody but torchrun knows."""
    own = own_torchrun(script)
    if own is None:
        return []
    given, found = own[1], []
    for name, value in given.variables.items():
        if (other := environ.get(name, "").strip()) and other != value:
            flag = _flag_of(name, given)
            written = flag if flag == "--standalone" else f"{flag}={value}"
            message = f"the command says {written} and the environment {name}={other}: the command counts"
            hint = f"remove the flag from the command, or make {name} say the same"
            found.append(_warn("torchrun-flag-differs", message, hint))
    if given.unknown:
        message = f"{given.unknown!r} among torchrun's own words is nothing that we understand, so torchrun answers it"
        hint = "correct it if it is a mistake; the agent does not know which nodes such a command is for"
        found.append(_warn("torchrun-flag-unknown", message, hint))
    return found


def _warn(code: str, message: str, hint: str) -> Finding:
    return Finding(code, message, Severity.WARNING, hint)


def _flag_of(name: str, given: Given) -> str:
    flag = "--" + name[4:].lower().replace("_", "-")
    return flag if flag in given.flags else "--standalone"


def _next(words: Sequence[str]) -> tuple[str, str, int]:
    """Return the first flag, its value, and how many words both are: none where we do not understand them."""
    name, equals, value = words[0].partition("=")
    flag = _flag(name)
    if flag in BARE:
        return flag, "", 0 if equals else 1
    if not flag and words[0][:2] in SHORT and not words[0].startswith("--"):  # -r3
        flag, value, equals = SHORT[words[0][:2]], words[0][2:], "="
    if not flag or flag in BARE:
        return "", "", 0
    used = 1 if equals else 2
    if not equals:
        value = words[1] if len(words) > 1 else "-"
        if value.startswith("-"):
            return "", "", 0
    fits = re.fullmatch(VALUES[flag], value, re.ASCII)
    return (flag, value, used) if fits else ("", "", 0)


def _flag(name: str) -> str:
    """Return the flag in its first spelling for what argparse takes for it, else nothing."""
    if name in SHORT:
        return SHORT[name]
    if not name.startswith("--"):
        return ""
    exact = [name] if name in SPELLINGS else [s for s in SPELLINGS if s.startswith(name)]
    return "--" + exact[0][2:].replace("_", "-") if len(exact) == 1 else ""
