"""The report as text for a terminal: the culprit first, a hint under each finding."""

from __future__ import annotations

from typing import Any

from trainer_agent.formats.gang_section import gang_of
from trainer_agent.formats.gang_words import lines as gang_lines
from trainer_agent.formats.gang_words import listed
from trainer_agent.formats.reading import MOST_SUSPECTS, counted, findings_of, visible
from trainer_agent.report import worst_first

RED, GREEN, YELLOW, MAGENTA, DIM, BOLD = "31", "32", "33", "35", "2", "1"
COLOURS = {"pass": GREEN, "warn": YELLOW, "fail": RED, "error": MAGENTA, "skip": DIM, "retry": RED, "fatal": RED}
SEVERITIES = {"error": RED, "warning": YELLOW, "info": DIM}


def write(data: dict[str, Any], *, colour: bool = False) -> str:
    """Return the report as aligned lines, the worst check first."""
    node, verdict = data["node"], data["verdict"]
    title = _paint(f"preflight {verdict.upper()}", COLOURS[verdict], colour=colour)
    of = f" of {node['nnodes']}" if node["rank"] < node["nnodes"] else ""  # an index of a Job that is no TrainJob's
    where = f"node {node['rank']}{of} ({visible(node['hostname'])})"
    width = max((len(visible(c["name"])) for c in data["checks"]), default=0)
    checks = [line for c in worst_first(data["checks"]) for line in _check(c, width, colour=colour)]
    counts = [f"checks: {counted(data['checks'])}"] if checks else []
    above = [*_suspects(data["suspects"], colour=colour), *_gang(data, colour=colour)]
    lines = [f"{title}  {where}  {data['duration_s']:.1f} s", *above, "", *checks, "", *counts, _footer(data)]
    return "\n".join(lines) + "\n"


def _suspects(suspects: list[dict[str, Any]], *, colour: bool) -> list[str]:
    shown = [_suspect(s, colour=colour) for s in suspects]
    return listed(shown, most=MOST_SUSPECTS, what="more suspects")


def _suspect(suspect: dict[str, Any], *, colour: bool) -> str:
    who = _paint(visible(f"{suspect['kind']} {suspect['id']}"), BOLD, colour=colour)
    return f"  suspect: {who}: {visible(suspect['reason'])}"


def _gang(data: dict[str, Any], *, colour: bool) -> list[str]:
    """Return what a section about the gang says; a report about one node has none."""
    gang = gang_of(data)
    if gang is None:
        return []
    first, *rest = (visible(line) for line in gang_lines(gang))
    whose, colon, said = first.partition(": ")
    return [_paint(whose, COLOURS[gang.verdict], colour=colour) + colon + said, *rest]


def _check(check: dict[str, Any], width: int, *, colour: bool) -> list[str]:
    status = _paint(check["status"].upper().ljust(5), COLOURS[check["status"]], colour=colour)
    line = f"{status}  {visible(check['name']).ljust(width)}  {visible(check['message'])}"
    return [line, *(part for finding in findings_of(check) for part in _finding(finding, colour=colour))]


def _finding(finding: dict[str, Any], *, colour: bool) -> list[str]:
    severity = _paint(finding["severity"], SEVERITIES[finding["severity"]], colour=colour)
    line = f"       {severity}: {visible(finding['message'])} [{visible(finding['code'])}]"
    hint = _paint(visible(finding["hint"]), BOLD, colour=colour)
    return [line, f"         -> {hint}"] if finding["hint"] else [line]


def _footer(data: dict[str, Any]) -> str:
    failed = [visible(c["name"]) for c in data["checks"] if c["status"] in ("fail", "error")]
    around = f". To go on in spite of a check: --ignore {','.join(failed)}" if failed else ""
    return f"action: {visible(data['action'])}{around}"


def _paint(text: str, code: str, *, colour: bool) -> str:
    return f"\033[{code}m{text}\033[0m" if colour else text
