"""The report as one page that asks nobody for anything: no script, no font, no image, no request."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from trainer_agent.formats.badges import badge
from trainer_agent.formats.bars import bars_in, bars_table
from trainer_agent.formats.gang import gang_section
from trainer_agent.formats.gpus import Gpu, Grid, grid
from trainer_agent.formats.markup import Markup, element, join, only_ascii
from trainer_agent.formats.reading import MEANINGS, MOST_SUSPECTS, cause, counted, findings_of
from trainer_agent.formats.style import STYLE
from trainer_agent.report import worst_first

OPEN = ("fail", "error", "warn")


def write(data: dict[str, Any], *, colour: bool = False) -> str:
    """Return the page: the verdict and what to do first, the gang, GPUs against checks, then every check."""
    node, verdict = data["node"], data["verdict"]
    title = f"{verdict}: preflight of {node['hostname']}"
    main = [_top(data), gang_section(data), _grid(data["checks"]), _checks(data["checks"]), _footer(data)]
    page = element("html", _head(title), element("body", element("main", *main)), lang="en")
    return only_ascii(f"<!DOCTYPE html>\n{page}\n")


def _head(title: str) -> Markup:
    # The hash allows this style alone: whatever slipped through escaping could neither run, nor load, nor disguise.
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(STYLE)),
    )


def _top(data: dict[str, Any]) -> Markup:
    node, verdict = data["node"], data["verdict"]
    where = f"Node {node['rank']} of {node['nnodes']}, {node['hostname']}"
    when = f"{data['started_at']}, {data['duration_s']:.1f} s"
    suspects = [_suspect(s) for s in data["suspects"][:MOST_SUSPECTS]]
    left = len(data["suspects"]) - len(suspects)
    suspects += [element("li", f"and {left} more suspects")] if left else []
    return element(
        "header",
        element("h1", badge(verdict), " preflight"),
        element("p", element("strong", where), element("span", f" · {when}", class_="soft")),
        element("p", MEANINGS[verdict], " Action: ", element("strong", data["action"]), "."),
        element("ul", *suspects, class_="suspects") if suspects else None,
        _first(data),
        class_=f"card top {verdict}",
    )


def _suspect(suspect: dict[str, Any]) -> Markup:
    who = element("strong", f"{suspect['kind']} {suspect['id']}")
    return element("li", "Suspect: ", who, f" (node rank {suspect['node_rank']}): {suspect['reason']}")


def _first(data: dict[str, Any]) -> Markup | None:
    """Return what to look at first, and what to do about it."""
    found = cause(data)
    if found is None:
        return None
    check, finding = found
    message = finding["message"] if finding else check["message"]
    link = element("a", check["name"], href=f"#{_anchor(data['checks'], check)}")
    lines = [element("h2", "Look at this first"), element("p", element("strong", link), f": {message}")]
    if finding and finding["hint"]:
        lines.append(element("p", finding["hint"], class_="hint"))
    return join(*lines)


def _grid(checks: list[dict[str, Any]]) -> Markup | None:
    found = grid(checks)
    if found is None:
        return None
    heads = [element("th", checks[n]["name"], scope="col") for n in found.columns]
    rows = [_grid_row(found, _gpu_head(gpu), cells) for gpu, cells in zip(found.gpus, found.cells, strict=True)]
    if any(found.node):
        rows.append(_grid_row(found, element("th", "no GPU named", scope="row"), found.node))
    table = element(
        "table",
        element("caption", "What each check that looks at GPUs says about each of them."),
        element("thead", element("tr", element("th", "GPU", scope="col"), *heads)),
        element("tbody", *rows),
        class_="grid",
    )
    # Focusable, as a keyboard could not scroll it otherwise.
    box = element("div", table, class_="wide", tabindex="0", role="region", aria_label="GPUs and checks")
    return element("section", element("h2", "GPUs"), box)


def _gpu_head(gpu: Gpu) -> Markup:
    others = " ".join(name for name in gpu.names.values() if name not in gpu.title)
    return element("th", gpu.title, element("div", element("code", others), class_="soft"), scope="row")


def _grid_row(found: Grid, head: Markup, cells: list[str]) -> Markup:
    return element("tr", head, *(_cell(*pair) for pair in zip(found.columns, cells, strict=True)))


def _cell(column: int, status: str) -> Markup:
    if not status:
        return element("td")
    return element("td", element("a", badge(status), href=f"#check-{column}"), class_=f"cell {status}")


def _checks(checks: list[dict[str, Any]]) -> Markup:
    shown = [_check(check, _anchor(checks, check)) for check in worst_first(checks)]
    return element("section", element("h2", "Checks: ", counted(checks) or "none"), *shown)


def _anchor(checks: list[dict[str, Any]], check: dict[str, Any]) -> str:
    """Return the id of a check on the page: its place in the report, as its name may hold anything."""
    return f"check-{next(n for n, c in enumerate(checks) if c is check)}"


def _check(check: dict[str, Any], anchor: str) -> Markup:
    status = check["status"]
    summary = element(
        "summary",
        badge(status),
        " ",
        element("h3", check["name"]),
        f" {check['message']} ",
        element("span", f"{check['duration_s']:.2f} s", class_="soft"),
    )
    findings = [_finding(f) for f in findings_of(check)]
    asked = f"Action: {check['action']}." if status == "fail" else ""
    inside = element(
        "div",
        element("p", asked) if asked else None,
        element("ul", *findings) if findings else None,
        bars_table(bars_in(check["measurements"])),
        _facts("Measurements", check["measurements"]),
        None if findings or check["measurements"] else element("p", "Nothing found, nothing measured.", class_="soft"),
        class_="inside",
    )
    return element("details", summary, inside, class_=f"check {status}", id=anchor, open=status in OPEN)


def _finding(finding: dict[str, Any]) -> Markup:
    severity = finding["severity"]
    return element(
        "li",
        element(
            "p", element("span", severity, class_=f"badge {severity}"), f": {finding['message']}", class_="message"
        ),
        element("p", element("code", finding["code"]), class_="soft"),
        element("p", finding["hint"], class_="hint") if finding["hint"] else None,
        bars_table(bars_in(finding["evidence"])),
        _facts("Evidence", finding["evidence"]),
        class_=f"finding {severity}",
    )


def _facts(title: str, facts: dict[str, Any]) -> Markup | None:
    """Return names and values as a table, nothing where there are none."""
    if not facts:
        return None
    rows = [
        element("tr", element("th", name, scope="row"), element("td", _value(value))) for name, value in facts.items()
    ]
    return element("div", element("table", element("caption", title), *rows), class_="wide")


def _value(value: Any) -> Markup:
    """Return a value as JSON; a list of objects, such as one for each GPU, as a table."""
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        return _rows(value)
    return element("code", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _rows(rows: list[dict[str, Any]]) -> Markup:
    names = list(dict.fromkeys(name for row in rows for name in row))
    heads = [element("th", name, scope="col") for name in names]
    shown = [element("tr", *(element("td", _value(row[n]) if n in row else "") for n in names)) for row in rows]
    return element("table", element("thead", element("tr", *heads)), element("tbody", *shown))


def _footer(data: dict[str, Any]) -> Markup:
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    return element("footer", element("p", f"{data['schema']} · {versions} · exit code {data['exit_code']}"))
