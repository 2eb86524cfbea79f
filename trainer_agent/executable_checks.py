"""Checks that are programs: any executable file in a directory of `--checks-dir` that prints one JSON object."""

from __future__ import annotations

import os
import re
import shlex
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_agent.catalogue import Listed
from trainer_agent.check import PROFILES, Check
from trainer_agent.check_answer import AnswerError, read_answer
from trainer_agent.errors import FatalError
from trainer_agent.guarded import END_S, run_guarded
from trainer_agent.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trainer_agent.check import Context, Outcome
    from trainer_agent.guarded import Ended

TIMEOUT_S = 10.0
# What editors and package managers leave beside a file.
BACKUP = re.compile(r".*(~|\.(bak|orig|old|swp|tmp|rpmsave|rpmnew|rpmorig|dpkg-\w+|ucf-\w+))", re.IGNORECASE)
HEADER = re.compile(r"\s*#\s*trainer-agent:(.*)")
HEADER_LINES, HEADER_BYTES = 20, 8192
SECONDS = ("timeout", "alone")


def add_programs(installed: Mapping[str, Listed], folders: Iterable[str]) -> dict[str, Listed]:
    """
    Return the installed checks and, after them, the programs in `folders`; a name that exists already is not taken.

    Raises:
        FatalError: a folder cannot be listed, or somebody else could put programs there.
    """
    found = dict(installed)
    for folder in folders:
        for program in _programs(folder):
            if program.name in found:
                get_logger().warning(
                    "a check with this name exists already, the later one is ignored",
                    check=program.name,
                    provider=program.target,
                )
                continue
            found[program.name] = program
    return found


class Program(Listed):
    """A check that is an executable file; `target` is its path, `provider` the folder."""

    def load(self) -> Check:
        """
        Return the check, as the file's name and its header describe it.

        Raises:
            FatalError: the name or the header is not as it must be, or somebody else may write the file.
        """
        stem = Path(self.target).stem
        if _kebab(stem) != stem.lower().replace("_", "-"):
            raise self._error(f"its file name becomes the check's, wanted lower case such as {self.name}.sh")
        if reason := _reason_not_to_trust(Path(self.target)):
            raise self._error(reason)
        settings = self._settings()
        return Check(
            self.name,
            settings.get("question") or f"What does {self.target} say?",
            (),
            partial(_run, self.name, self.target, settings.get("timeout", TIMEOUT_S)),
            timeout_s=settings.get("timeout", TIMEOUT_S) + END_S,
            profile=settings.get("profile", "quick"),
            alone_s=settings.get("alone", 0.0),
            finds_anything=True,
        )

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        for line in _first_lines(Path(self.target)):
            if header := HEADER.fullmatch(line):
                try:
                    settings |= dict(_setting(word) for word in shlex.split(header[1]))
                except ValueError as error:
                    raise self._error(f"its header {line.strip()!r} is wrong: {error}") from error
        return settings

    def _error(self, reason: str) -> FatalError:
        message = f"check {self.name} ({self.target}) cannot be loaded: {reason}"
        hint = f"correct or remove {self.target}, or run with --skip {self.name}"
        return FatalError("check-not-loadable", message, hint=hint)


def _programs(folder: str) -> Iterator[Program]:
    """Yield what is executable in a folder, by name."""
    place = Path(folder).absolute()
    try:
        files = sorted(file for file in place.iterdir() if not file.name.startswith(".") and file.is_file())
    except OSError as error:
        message = f"--checks-dir {folder} cannot be listed: {error.strerror}"
        raise FatalError("checks-dir-unreadable", message, hint="name a directory of executable files") from error
    if reason := _reason_not_to_trust(place):
        message = f"programs in --checks-dir {folder} are not run: {reason}"
        raise FatalError("checks-dir-untrusted", message, hint="mount it read-only, or give it to root with mode 755")
    for file in files:
        if BACKUP.fullmatch(file.name):
            continue
        if file.stat().st_mode & 0o111:
            yield Program(_kebab(file.stem) or "unnamed", str(file), folder)
        elif (_first_lines(file) or [""])[0].startswith("#!"):
            get_logger().warning("a script is no check as it is not executable; chmod +x makes it one", file=str(file))


def _kebab(stem: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", stem.lower()))


def _reason_not_to_trust(path: Path) -> str:
    """Return how somebody else could have put this file there; nothing when only root and we could."""
    for place in (real := path.resolve(), *real.parents):
        if os.statvfs(place).f_flag & os.ST_RDONLY:  # as Kubernetes mounts a ConfigMap, with mode 777
            continue
        info = place.stat()
        shared = place != real and info.st_mode & stat.S_ISVTX  # such as /tmp: entries of others stay theirs
        if info.st_mode & stat.S_IWOTH and not shared:
            return f"everybody may write {place} (mode {stat.S_IMODE(info.st_mode):o})"
        if os.geteuid():
            continue
        if info.st_uid:
            return f"{place} belongs to user {info.st_uid}, and this is root"
        if info.st_mode & stat.S_IWGRP and info.st_gid and not shared:
            return f"group {info.st_gid} may write {place}, and this is root"
    return ""


def _first_lines(file: Path) -> list[str]:
    try:
        with file.open("rb") as stream:
            return stream.read(HEADER_BYTES).decode(errors="replace").splitlines()[:HEADER_LINES]
    except OSError:  # a program may be executable and not readable
        return []


def _setting(word: str) -> tuple[str, Any]:
    """Return what one `name=value` of a header says."""
    name, _, value = word.partition("=")
    if name == "question" and value:
        return name, value
    if name == "profile" and value in PROFILES:
        return name, value
    if name in SECONDS and re.fullmatch(r"\d{1,4}(\.\d+)?", value) and float(value):
        return name, float(value)
    known = f'timeout=SECONDS, alone=SECONDS, profile={"|".join(PROFILES)}, question="TEXT"'
    raise ValueError(f"{word!r} is none of {known}")


def _run(name: str, file: str, timeout_s: float, context: Context) -> Outcome:
    try:
        ended = run_guarded(
            [file],
            environ={**context.environ, **_variables(name, timeout_s, context)},
            timeout_s=timeout_s,
            memory_bytes=context.limits.for_a_program(),
        )
    except OSError as error:
        if error.errno is None:  # the guard's own end
            raise AnswerError(f"{file}: {error}") from error
        why = f"{error.strerror}; wanted a first line such as #!/bin/sh, and a file system not mounted noexec"
        raise AnswerError(f"{file} cannot be started: {why}") from error
    try:
        return _outcome(name, ended)
    except AnswerError as error:
        said = f"; its last words: {ended.last_words}" if ended.last_words else ""
        raise AnswerError(f"{file}: {error}{said}") from error


def _outcome(name: str, ended: Ended) -> Outcome:
    if ended.problem:
        raise AnswerError(ended.problem)
    if ended.end:
        raise AnswerError(f"it {ended.end}, wanted 0 and one JSON object, also for a failure")
    return read_answer(name, ended.stdout)


def _variables(name: str, timeout_s: float, context: Context) -> dict[str, str]:
    """Return what a program is told beside the environment; docs/writing-a-check.md lists them."""
    facts = {
        "NAME": name,
        "TIMEOUT_S": f"{timeout_s:g}",
        "PROFILE": context.options.profile,
        "NPROC": context.nproc,
        "NODE_RANK": context.topology.node_rank,
        "NNODES": context.topology.max_nodes,
        "ACCELERATORS": context.accelerators.kind,
        "ACCELERATOR_COUNT": context.accelerators.count,
    }
    return {f"TRAINER_AGENT_CHECK_{key}": str(value) for key, value in facts.items()}
