"""What a machine answers to NVML: made here, read by the stand-in library (its format: standin_engine.c)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from nvml_drivers import DRIVERS, fields_below, hidden_functions, hidden_structures

SOURCES = sorted(Path(__file__).parent.glob("standin_*.c"))
MACHINE = re.compile(r"nvml(System|Init|Shutdown|EventSet|DeviceGetCount)\w*")  # these are asked without a device
FUNCTION = re.compile(r"nvml(?:Init|Shutdown|Error|System|EventSet|Device(?:Get|Is|Register))\w*")  # and no structure
NEWEST = max(DRIVERS)
XID = 8  # nvmlEventTypeXidCriticalError
INVALID_ARGUMENT, LOST, VERSION_MISMATCH = 2, 15, 25


@dataclass(frozen=True)
class Line:
    """One answer: `kind` is `=` for a value, `!` for an error code, `~` for a hang."""

    question: str
    kind: str
    text: str = ""
    from_call: int = 0
    after_s: float = 0.0

    def written(self) -> str:
        """Return it as the library reads it."""
        return "\t".join((self.question, str(self.from_call), f"{self.after_s:g}", self.kind, self.text))


@dataclass(frozen=True)
class Scenario:
    """
    A machine. Every method returns another one; what is said later wins.

    Methods share four arguments: `gpu` is an index, `"*"` for all, or `"0/2"` for a MIG instance; `of` holds the
    further arguments of the function, as a number or a tuple of them, each may be `"*"`; from the `from_call`-th
    question that fits (in all processes together) and `after_s` seconds after the first question it holds.
    """

    driver: int = NEWEST
    lines: tuple[Line, ...] = ()
    missing: frozenset[str] = frozenset()

    def says(self, function, answer, *, gpu="*", of="*", from_call=0, after_s=0.0) -> Scenario:
        """Answer with a number, a text, several numbers in a tuple, or a structure as a dictionary."""
        return self._with(Line(question(function, gpu, of), "=", text_of(answer), from_call, after_s))

    def fails(self, function, code, *, gpu="*", of="*", from_call=0, after_s=0.0) -> Scenario:
        """Return an error code such as pynvml.NVML_ERROR_UNKNOWN."""
        return self._with(Line(question(function, gpu, of), "!", str(code), from_call, after_s))

    def hangs(self, function, *, gpu="*", of="*", from_call=0, after_s=0.0) -> Scenario:
        """Never return."""
        return self._with(Line(question(function, gpu, of), "~", "", from_call, after_s))

    def field(self, number, value, *, gpu="*", scope="*", value_type=1, from_call=0, after_s=0.0) -> Scenario:
        """Answer nvmlDeviceGetFieldValues for one field; `value_type` is one of NVML_VALUE_TYPE_*, not a double."""
        return self._with(Line(f"{gpu}.field({number},{scope})", "=", f"{value_type} {value}", from_call, after_s))

    def field_fails(self, number, code, *, gpu="*", scope="*") -> Scenario:
        """Let one field fail; the call as a whole succeeds."""
        return self._with(Line(f"{gpu}.field({number},{scope})", "!", str(code)))

    def loses(self, gpu, *, code=LOST, from_call=1, after_s=0.0) -> Scenario:
        """Let everything about a GPU and its instances fail, its handle too; every field of a call counts as a call."""
        lines = [Line(f"{gpu}{part}.*", "!", str(code), from_call, after_s) for part in ("", "/*")]
        return self._with(*lines)

    def raises(self, xid, *, gpu, event_type=XID, from_wait=0, after_s=0.0) -> Scenario:
        """Let an event happen once, heard from the n-th nvmlEventSetWait_v2 of a set on."""
        return self._with(Line(f"{gpu}.event", "=", f"{event_type} {xid}", from_wait, after_s))

    def without(self, *functions) -> Scenario:
        """Take functions out of the library."""
        return replace(self, missing=self.missing | {known(f) for f in functions})

    def on_driver(self, branch: int) -> Scenario:
        """Use a driver of this branch, with what it does not know yet left out."""
        return replace(self, driver=branch)

    def hidden(self) -> frozenset[str]:
        """Return the functions that the library must not have."""
        return self.missing | hidden_functions(self.driver)

    def written(self) -> str:
        """Return the file that the library reads."""
        version, cuda = DRIVERS[self.driver]
        made = (
            Scenario()
            .says("nvmlSystemGetDriverVersion", version)
            .says("nvmlSystemGetNVMLVersion", f"{cuda // 1000}.{version}")
            .says("nvmlSystemGetCudaDriverVersion", cuda)
            .says("nvmlSystemGetCudaDriverVersion_v2", cuda)
            ._with(*self.lines, *self._too_new())
        )
        return "".join(f"{line.written()}\n" for line in made.lines)

    def _too_new(self) -> list[Line]:
        """What an old driver refuses. Which code it has for a field that it does not know is an assumption."""
        fields = {line.question for line in self.lines if (n := field_of(line)) and n >= fields_below(self.driver)}
        structures = {question(function, "*", version) for function, version in hidden_structures(self.driver)}
        return [
            *(Line(q, "!", str(INVALID_ARGUMENT)) for q in sorted(fields)),
            *(Line(q, "!", str(VERSION_MISMATCH)) for q in sorted(structures)),
        ]

    def _with(self, *lines: Line) -> Scenario:
        return replace(self, lines=(*self.lines, *lines))


def question(function: str, gpu, of) -> str:
    """Return the pattern of a question."""
    device = "" if MACHINE.fullmatch(known(function)) else gpu
    arguments = ",".join(str(a) for a in of) if isinstance(of, tuple) else of
    return f"{device}.{function}({arguments})"


def text_of(answer) -> str:
    """Return an answer as the library reads it."""
    if isinstance(answer, dict):
        return " ".join(f"{k}={v.hex() if isinstance(v, bytes) else v}" for k, v in answer.items())
    if isinstance(answer, tuple | list):
        return " ".join(str(int(a)) for a in answer)
    return str(answer)


def field_of(line: Line) -> int | None:
    """Return the number of the field that a line answers."""
    match = re.search(r"\.field\((\d+),", line.question)
    return int(match[1]) if match else None


def known(function: str) -> str:
    """Return the name of a function that the library has."""
    if function not in functions():
        raise ValueError(f"the stand-in has no {function}")
    return function


@cache
def functions() -> frozenset[str]:
    """Return the names of all functions of the library."""
    return frozenset(FUNCTION.findall("".join(s.read_text() for s in SOURCES)))
