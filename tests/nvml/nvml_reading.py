"""Ask the real nvidia-ml-py many things at once, in a child where the stand-in is the driver, with plain answers."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

OTHER_GPU = "the first GPU"  # an argument that stands for its handle
WITHOUT_DEVICE = ("nvmlSystem", "nvmlDeviceGetCount", "nvmlDeviceGetHandleBy")


def ask(rows, *, gpu=0, instance=None) -> tuple[list[Any], set[str]]:
    """Return the answers to (function, arguments) rows about one device, and which functions were looked up."""
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(gpu)
    if instance is not None:
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, instance)
    answers = [answer(device, function, *arguments) for function, *arguments in rows]
    return answers, set(pynvml._nvmlGetFunctionPointer_cache)


def answer(device, function, *arguments) -> Any:
    """Return a plain answer or the name of the error's class; a structure named in the arguments is returned filled."""
    given = [pynvml.nvmlDeviceGetHandleByIndex(0) if a == OTHER_GPU else a for a in arguments]
    structures = [a() for a in given if isinstance(a, type)]
    # nvidia-ml-py passes these on as they are: without byref, the driver would write to an address that is nonsense.
    given = [ctypes.byref(structures[0]) if isinstance(a, type) else a for a in given]
    if not function.startswith(WITHOUT_DEVICE):
        given.insert(0, device)
    try:
        result = getattr(pynvml, function)(*given)
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
        return type(error).__name__
    return plain(structures[0] if structures else result)


def plain(value) -> Any:
    """Return a value without ctypes: structures as dictionaries, a device as its UUID."""
    if isinstance(value, pynvml.c_nvmlFieldValue_t):
        return (value.fieldId, value.scopeId, value.valueType, value.nvmlReturn, value.value.siVal)
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, _ in value._fields_}
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return dict(vars(value))
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, ctypes.Array):
        values = [plain(v) for v in value]
        return bytes(values) if value._type_ is ctypes.c_uint8 else values
    if isinstance(value, pynvml.c_nvmlDevice_t):
        return pynvml.nvmlDeviceGetUUID(value)
    return value.value if isinstance(value, ctypes._SimpleCData) else value
