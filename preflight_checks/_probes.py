"""Run a probe: a file that the training environment's Python runs, that works a device hard and prints what it saw."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_agent.guarded import END_S, run_guarded
from trainer_agent.isolation import run_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer_agent.check import Context
    from trainer_agent.guarded import Ended

FOLDER = Path(__file__).parent / "probes"
NO_TORCH = 3  # the exit code of a probe whose Python has no torch


class ProbeError(Exception):
    """The probe broke, so that nothing is known; says what happened. `ended` is how it was killed, where it was."""

    def __init__(self, message: str, ended: Ended | None = None) -> None:
        super().__init__(message)
        self.ended = ended


class NoTorchError(ProbeError):
    """The training environment's Python has no torch."""


def ask(
    context: Context,
    probe: str,
    request: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    timeout_s: float,
    share: float = 1.0,
) -> dict[str, Any]:
    """
    Run `probes/<probe>_probe.py` with a request as its only argument and return the JSON object that it prints last.

    Args:
        environ: variables to set beside the context's; an empty value removes one.
        timeout_s: seconds until it is killed with everything that it started.
        share: its part of the memory that the container has left, 1 / n for n of them side by side.

    Raises:
        NoTorchError: there is no torch to ask.
        ProbeError: it crashed, hung, took too much memory or printed something else.
    """
    argv = [context.python, str(FOLDER / f"{probe}_probe.py"), json.dumps(request)]
    # TunableOp of ROCm would try out every product first, for minutes.
    merged = {**context.environ, "PYTORCH_TUNABLEOP_ENABLED": "0", **(environ or {})}
    given = {name: value for name, value in merged.items() if value or name not in (environ or {})}
    try:
        ended = run_guarded(argv, environ=given, timeout_s=timeout_s, memory_bytes=context.limits.for_a_program(share))
    except OSError as error:
        raise ProbeError(f"{argv[0]} cannot be started: {error.strerror or error}; --python names another") from error
    return _answer(ended, argv[0])


def ask_side_by_side(
    context: Context,
    probe: str,
    requests: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]],
    *,
    timeout_s: float,
) -> list[dict[str, Any] | ProbeError]:
    """Run a probe once for each (request, variables), all at the same time; a broken one gives its error."""
    share = 1 / max(1, len(requests))
    calls = [
        partial(_asked, context, probe, request, environ, timeout_s=timeout_s, share=share)
        for request, environ in requests
    ]
    answers = run_all([(call, timeout_s + END_S) for call in calls])
    return [ProbeError(str(answer.error)) if answer.error else answer.value for answer in answers]


def _asked(
    context: Context, probe: str, request: Mapping[str, Any], environ: Mapping[str, str], **how: float
) -> dict[str, Any] | ProbeError:
    try:
        return ask(context, probe, request, environ=environ, **how)
    except ProbeError as error:
        return error


def _answer(ended: Ended, python: str) -> dict[str, Any]:
    said = ended.last_words
    if ended.problem:
        raise ProbeError(f"{ended.problem}{f'; its last words: {said}' if said else ''}", ended)
    if ended.code == NO_TORCH:
        raise NoTorchError(f"{python} has no torch: {said}")
    if ended.end:
        raise ProbeError(f"it {ended.end}{f': {said}' if said else ''}")
    try:
        answer = json.loads(ended.last_line)
    except ValueError as error:
        raise ProbeError(f"it printed no JSON: {ended.stdout[-200:]!r}") from error
    if not isinstance(answer, dict):
        raise ProbeError(f"it printed {type(answer).__name__}, wanted an object")
    return answer
