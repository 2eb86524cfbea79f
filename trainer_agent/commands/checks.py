"""`checks`: list them, or explain one."""

from __future__ import annotations

import json
import os
import textwrap
from typing import TYPE_CHECKING, Any

import click

from trainer_agent.accelerators import Accelerators
from trainer_agent.catalogue import Listed, list_checks
from trainer_agent.cgroup import read_limits
from trainer_agent.check import Context
from trainer_agent.commands.preflight import refuse_unknown
from trainer_agent.errors import AgentError, Severity
from trainer_agent.executable_checks import add_programs
from trainer_agent.host import Host
from trainer_agent.topology import read_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WIDTH = 80
LABEL = 10  # columns of a rule's labels


@click.command()
@click.argument("name", required=False)
@click.option(
    "--checks-dir",
    type=click.Path(),
    multiple=True,
    envvar=["TRAINER_AGENT_CHECKS_CHECKS_DIR", "TRAINER_AGENT_PREFLIGHT_CHECKS_DIR"],
    show_envvar=True,
    help="A directory whose executable files are checks, too. Repeat for several.",
)
@click.option(
    "--output",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    show_envvar=True,
    help="Text for people, JSON for programs.",
)
def checks(name: str | None, checks_dir: tuple[str, ...], output: str) -> None:
    """
    List the installed checks, or explain one: its question, what it can find, thresholds, what to do.

    \b
    trainer-agent checks
    trainer-agent checks shm
    """
    installed = add_programs(list_checks(), checks_dir)
    refuse_unknown([name] if name else [], installed)
    if output == "json":
        told = facts(installed[name]) if name else [_facts_or_reason(entry) for entry in installed.values()]
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        click.echo(explain(facts(installed[name])) if name else table(installed), nl=False)


def table(installed: Mapping[str, Listed]) -> str:
    """Return one line for each check: name, question, and its provider where that is not the agent."""
    width = max(map(len, installed), default=0)
    return "".join(f"{name.ljust(width)}  {_question(entry)}\n" for name, entry in installed.items())


def _question(entry: Listed) -> str:
    """Return its question, or why it has none: one broken package must not hide the others' checks."""
    try:
        question = entry.load().question
    except AgentError as error:
        return f"({error.message})"
    return question if entry.provider == "trainer-agent" else f"{question} ({entry.provider})"


def _facts_or_reason(entry: Listed) -> dict[str, Any]:
    try:
        return facts(entry)
    except AgentError as error:
        return {"name": entry.name, "provider": entry.provider, "error": error.message}


def facts(entry: Listed) -> dict[str, Any]:
    """Return all that is known of a check."""
    check, context = entry.load(), _context()
    deadline, broken = _asked("timeout_s", lambda: float(check.deadline_s(context)))
    thresholds, also = _asked("thresholds", lambda: _numbers(check.thresholds(context) if check.thresholds else {}))
    return {
        "name": check.name,
        "question": check.question,
        "provider": entry.provider,
        "target": entry.target,
        "profile": check.profile,
        "deadline_s": deadline,
        "alone_s": check.alone_s,
        "thresholds": thresholds or {},
        "rules": [
            {
                "code": rule.code,
                "severity": str(rule.severity),
                "when": rule.when,
                "source": rule.source,
                "hint": rule.hint,
                "action": str(rule.action if rule.severity is Severity.ERROR else "continue"),
            }
            for rule in check.rules
        ],
        **({"broken": [*broken, *also]} if broken or also else {}),
    }


def _asked(name: str, question: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return what a function of a check answers, or None and how it broke: it may be somebody else's."""
    try:
        return question(), []
    except AgentError:  # a setting of ours is wrong
        raise
    except Exception as error:  # noqa: BLE001  # somebody else's function
        return None, [f"its {name} gives {type(error).__name__}: {error}"]


def _numbers(thresholds: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return thresholds as they can be printed; raise where they are not what the contract says."""
    found = {str(name): {"value": t["value"], "origin": str(t["origin"])} for name, t in thresholds.items()}
    for threshold in found.values():
        _value(threshold)
    return found


def _context() -> Context:
    """Return what is known without asking a driver."""
    host = Host()
    topology = read_topology(os.environ, hostname=host.hostname())
    return Context(os.environ, topology, read_limits(host), Accelerators("none", 0, "not looked at"), host)


def explain(facts: Mapping[str, Any]) -> str:
    """Return all that is known of a check, for a terminal of 80 columns."""
    alone = f"; alone, needs {facts['alone_s']:g} s" if facts["alone_s"] else ""
    lines = [
        facts["name"],
        *_wrapped("", facts["question"]),
        "",
        *_wrapped("provider", facts["provider"]),
        *_wrapped("profile", f"{facts['profile']} and above"),
        *_wrapped("deadline", f"{_seconds(facts['deadline_s'])}{alone}"),
        *(line for reason in facts.get("broken", ()) for line in _wrapped("broken", reason)),
    ]
    if facts["thresholds"]:
        lines += ["", "thresholds in force here:", *_thresholds(facts["thresholds"])]
    lines += ["", "can find:"] if facts["rules"] else ["", "can find: whatever it prints"]
    return "\n".join([*lines, *(line for rule in facts["rules"] for line in _rule(rule))]) + "\n"


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:g} s"


def _thresholds(thresholds: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    names, values = max(map(len, thresholds)), max(len(_value(t)) for t in thresholds.values())
    for name, found in thresholds.items():
        yield f"  {name.ljust(names)}  {_value(found)}".ljust(names + values + 6) + found["origin"]


def _value(threshold: Mapping[str, Any]) -> str:
    value = threshold["value"]
    return value if isinstance(value, str) else f"{value:.12g}"


def _rule(rule: Mapping[str, str]) -> Iterator[str]:
    asks = f", {rule['action']}" if rule["severity"] == Severity.ERROR else ""
    yield f"  {rule['code']} ({rule['severity']}{asks})"
    for label, key in (("when", "when"), ("do", "hint"), ("source", "source")):
        if rule[key]:
            yield from _wrapped(label, rule[key], indent=4)


def _wrapped(label: str, text: str, *, indent: int = 2) -> list[str]:
    begin = " " * indent + label.ljust(LABEL if label else 0)
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    )
