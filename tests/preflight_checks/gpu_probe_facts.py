"""Print as JSON what the verification of products and the reading of errors do; started with the real torch."""

import json
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "preflight_checks" / "probes"))

import bandwidth_probe
import probe_gemm
import probe_gpu
import torch

SHAPES = ((64, 48, 1000), (100, 77, 3000), (33, 65, 256))
FORMATS = {"bf16": torch.int16, "fp16": torch.int16, "fp32": torch.int32}
ERRORS = (
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
    RuntimeError("CUDA error: system not yet initialized"),
    RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver"),
    RuntimeError("The NVIDIA driver on your system is too old (found version 11040)."),
    RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    RuntimeError("No CUDA GPUs are available"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx`"),
    RuntimeError("CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling `hipblasLtMatmulAlgoGetHeuristic`"),
    RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
    RuntimeError("HIP error: invalid device function"),
    RuntimeError("CUDA error: operation not supported"),
    RuntimeError("CUDA driver error: operation not supported"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
)


def case(kind, shape=SHAPES[0]):
    """Return a product on the CPU."""
    return probe_gemm.Case(torch, kind, list(shape), "cpu")


def flipped(kind, bit):
    """Return what is said of a product with one wrong bit, and whether that is all true."""
    it = case(kind)
    product = it.multiply()
    row, column = (product.abs() > 1).nonzero()[11].tolist()
    right = int(product[row, column])
    bits = product[row, column : column + 1].view(FORMATS[kind])
    width = bits.element_size() * 8
    bits ^= 1 << bit if bit < width - 1 else -(1 << bit)
    said = it.fault_in(product)
    wanted = {"what": "product", "rows": 1, "count": 1, "index": [row, column], "expected": right}
    return said is not None and said == {**wanted, "got": repr(float(product[row, column]))}


def changed(change):
    """Return what is said of a product after a change."""
    it = case("bf16")
    product = it.multiply()
    change(product)
    said = it.fault_in(product)
    return said and [said["what"], said.get("count")]


def cancelling(product):
    product[5, 6] += 1
    product[5, 7] -= 1


def tiny(product):
    row, column = (product == 0).nonzero()[0].tolist()
    product[row, column] = struct.unpack("f", struct.pack("I", 1 << 24))[0]  # 2^-125, as one bit makes it of 0


def orders(kind):
    """Return whether sums in another order, each rounded to the narrow type, come to the same product."""
    it = case(kind, (32, 32, 3000))
    total = torch.zeros(32, 32, dtype=it.a.dtype)
    for k in torch.randperm(3000).tolist():
        total += it.a[:, k : k + 1] * it.b[k : k + 1]
    return bool(torch.equal(total, it.multiply()))


def broken_checksum():
    it = case("bf16")
    it.left_there = it.left_there.clone()
    it.left_there[3, 4] += 1
    return it.fault_in(it.multiply())


def repetitions():
    """A product that is right, then one that is wrong, then a right one that differs from what is remembered."""
    it = case("bf16")
    found = [it.verify(3)]
    it.b[0, 0] *= -1
    found.append([fault["what"] for fault in it.verify(2)])
    it.b[0, 0] *= -1
    it.right_one[0, 0] += 1
    found.append([fault["what"] for fault in it.verify(1)])
    return found


def turns():
    with bandwidth_probe.turn(1):
        try:
            with bandwidth_probe.turn(0.05):
                return "both"
        except BlockingIOError:
            return "one"


def boxed():
    """Return how often something was done: fast, and so slow that the box ends it."""
    clock = probe_gpu.Clock(torch, "cpu")
    fast = clock.repeated(lambda: None, least=20, box_s=0)
    often = clock.repeated(lambda: None, least=20, box_s=0.02)
    slow = clock.repeated(lambda: time.sleep(0.01), least=50, box_s=0.01)
    return [len(fast), len(often) > 20, len(slow)]


facts = {
    "dense": {
        kind: [int((case(kind, shape).left != 0).sum(dim=1).max()) for shape in SHAPES] for kind in probe_gemm.KINDS
    },
    "clean": {
        kind: [case(kind, shape).verify(2) for shape in SHAPES] for kind in ("bf16", "fp16", "tf32", "fp32", "int8")
    },
    "bits": {kind: [flipped(kind, bit) for bit in range(16 if kind != "fp32" else 32)] for kind in FORMATS},
    "nan": changed(lambda product: product[3, 4].fill_(float("nan"))),
    "infinite": changed(lambda product: product[3, 4].fill_(float("inf"))),
    "fraction": changed(lambda product: product[3, 4].add_(0.5)),
    "tiny": changed(tiny),
    "cancelling": changed(cancelling),
    "rows": changed(lambda product: product[3].copy_(product[4].clone()))[0],
    "orders": [orders("bf16"), orders("fp16")],
    "checksum": broken_checksum(),
    "repetitions": repetitions(),
    "turns": turns(),
    "boxed": boxed(),
    "errors": [(said := probe_gpu.cuda_error(torch, error)) and [said["kind"], said["code"]] for error in ERRORS],
}
sys.stdout.write(json.dumps(facts))
