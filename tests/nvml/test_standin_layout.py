"""The stand-in's structures, functions and driver tables against nvidia-ml-py, which NVIDIA generates."""

import ctypes
import re
from collections import defaultdict
from pathlib import Path

import pynvml
import pytest
from nvml_drivers import DRIVERS, FIELDS_BELOW, FUNCTIONS_SINCE, STRUCTURES_SINCE
from nvml_machines import h100_sxm
from nvml_scenario import Scenario, functions


def layouts(nvml_standin):
    """Return {structure: [(member, offset, size)]}, the first member `-` being the structure as a whole."""

    def read():
        library = ctypes.CDLL("libnvidia-ml.so.1")
        library.standin_layouts.restype = ctypes.c_char_p
        return library.standin_layouts().decode()

    found = defaultdict(list)
    for line in nvml_standin.call(Scenario(), read).splitlines():
        structure, member, offset, size = line.split()
        found[structure].append((member, int(offset), int(size)))
    return dict(found)


def theirs(structure):
    """Return the same of nvidia-ml-py's class."""
    kind = getattr(pynvml, f"c_{structure}", None) or getattr(pynvml, structure)
    members = [(name, getattr(kind, name).offset, getattr(kind, name).size) for name, _ in kind._fields_]
    return [("-", 0, ctypes.sizeof(kind)), *members]


def test_every_structure_has_the_layout_of_nvidia_ml_py(nvml_standin):
    """Sizes, names, offsets and order; a wrong one would be a wrong number on a real machine."""
    found = layouts(nvml_standin)

    assert {name: theirs(name) for name in found} == found
    assert len(found) == 20


def test_every_function_is_one_that_nvidia_ml_py_calls():
    """A misspelt function of ours would answer nobody."""
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text()))
    unused = {"nvmlDeviceGetPciInfo_v2"}  # in every driver, called by older nvidia-ml-py

    assert functions() - called == unused
    assert len(functions()) > 90


def test_the_driver_tables_are_about_functions_of_ours():
    """A name that is nowhere else hides nothing."""
    named = set(FUNCTIONS_SINCE) | {function for function, _ in STRUCTURES_SINCE}

    assert named - functions() == set()
    assert sorted(FIELDS_BELOW.values()) == [FIELDS_BELOW[b] for b in sorted(FIELDS_BELOW)]


@pytest.mark.parametrize("branch", DRIVERS)
def test_a_driver_lacks_what_is_newer_than_itself(nvml_standin, branch):
    """The real loader finds every function that the driver had then, and no other."""

    def exported():
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return {name for name in functions() if hasattr(library, name)}

    later = {name for name, since in FUNCTIONS_SINCE.items() if since > branch}
    found = nvml_standin.call(h100_sxm().on_driver(branch), exported)

    assert functions() - later == found


def test_internal_names_are_not_exported(nvml_standin):
    """Names such as `fill` could be taken by, or taken from, another library in the process."""

    def exported():
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return [name for name in ("fill", "ask", "load", "lines") if name in library.__dict__ or hasattr(library, name)]

    assert [] == nvml_standin.call(Scenario(), exported)


def test_a_misspelt_function_is_refused():
    """A scenario that means nothing would make a test pass for no reason."""
    with pytest.raises(ValueError, match="the stand-in has no nvmlDeviceGetTemprature"):
        Scenario().says("nvmlDeviceGetTemprature", 90)
