"""A seccomp profile that refuses some system calls, as a node's or a pod's own may; for good, so in a child only."""

import ctypes
import errno
import platform

PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38  # linux/prctl.h, linux/seccomp.h
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
LOAD, IS, ANSWER = 0x20, 0x15, 0x06  # linux/bpf_common.h: the number of the call, compare, return
NUMBERS = {
    "x86_64": {"flock": 73, "statfs": 137, "fstatfs": 138, "sync_file_range": 277, "fallocate": 285, "syncfs": 306},
    "aarch64": {"flock": 32, "statfs": 43, "fstatfs": 44, "sync_file_range": 84, "fallocate": 47, "syncfs": 267},
}


class Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction)))


def refuse(*names, code):
    """Let the kernel answer these calls with an error, to this process and its children."""
    numbers = [NUMBERS[platform.machine()][name] for name in names]
    compared = [Instruction(IS, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    answers = [Instruction(ANSWER, 0, 0, ALLOW), Instruction(ANSWER, 0, 0, REFUSE | code)]
    instructions = [Instruction(LOAD, 0, 0, 0), *compared, *answers]
    program = Program(len(instructions), (Instruction * len(instructions))(*instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)):
        if libc.prctl(*arguments, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), errno.errorcode[ctypes.get_errno()])
