"""Products of matrices with one right result, and how they are verified."""

from __future__ import annotations

from typing import Any

import probe_gpu

# By kind: the type of the matrices, and the number up to which the type of the result holds every integer: 8 bits of
# precision in bfloat16, 11 in float16, 24 in float32. float8 gives a bfloat16, int8 an int32.
KINDS = {
    "bf16": ("bfloat16", 256),
    "fp16": ("float16", 2048),
    "tf32": ("float32", 1 << 24),
    "fp32": ("float32", 1 << 24),
    "fp8": ("float8_e4m3fn", 256),
    "int8": ("int8", 1 << 24),
}
OPTIONAL = ("fp8", "int8")
ROWS_AT_ONCE = 1024
LOOKED_AT = 16  # wrong rows whose numbers are counted
MOST_WEIGHT = 1 << 16


class Case:
    """A product of one kind and shape (m, n, k), with a copy of its matrices on the CPU."""

    def __init__(self, torch: Any, kind: str, shape: list[int], device: str) -> None:
        self.torch, self.kind, self.shape = torch, kind, shape
        name, self.bound = KINDS[kind]
        dtype = getattr(torch, name)
        self.random = torch.Generator().manual_seed(sum(shape))
        self.left, self.right = matrices(torch, shape, self.bound, self.random)
        self.left_there, self.right_there = self.left.to(device), self.right.to(device)
        self.a, self.b = self.left_there.to(dtype), self.right_there.to(dtype)
        self.one = torch.ones((), device=device)
        self.right_one: Any = None

    def multiply(self) -> Any:
        """Return the product as the device computes it."""
        torch = self.torch
        if self.kind == "int8":
            return torch._int_mm(self.a, self.b)  # noqa: SLF001  # torch has no other name for it
        if self.kind == "fp8":
            columns = self.b.t().contiguous().t()  # the library wants the right one by columns
            scales = {"scale_a": self.one, "scale_b": self.one}
            product = torch._scaled_mm(self.a, columns, out_dtype=torch.bfloat16, **scales)  # noqa: SLF001
            return product[0] if isinstance(product, tuple) else product  # a pair before torch 2.5
        if self.a.dtype == torch.float32:
            torch.set_float32_matmul_precision("high" if self.kind == "tf32" else "highest")
        return torch.mm(self.a, self.b)

    def verify(self, times: int) -> list[dict[str, Any]]:
        """Multiply some times and return what is wrong; after the first right product equality is enough."""
        found = []
        for _ in range(times):
            probe_gpu.at("product")
            product = self.multiply()
            if self.right_one is not None and self.torch.equal(product, self.right_one):
                continue
            fault = self.fault_in(product)
            if fault is None and self.right_one is not None:
                fault = {"what": "comparison"}  # two right products that differ: the device cannot compare them
            if fault is None:
                self.right_one = product
            else:
                found.append({"kind": self.kind, "shape": self.shape, **fault})
        return found

    def fault_in(self, product: Any) -> dict[str, Any] | None:
        """Return what is wrong with a product, by checksums on the device and a sample on the CPU."""
        torch = self.torch
        plain = product.to(torch.float32)  # exact: all of these types are narrower, or hold integers below 2^24
        odd = ((plain != plain.round()) | (plain.abs() > self.bound)).any(dim=1)  # NaN differs from itself
        weights = torch.randint(1, MOST_WEIGHT, (self.shape[1],), generator=self.random).to(product.device)
        wanted = checksums(torch, self.left_there, checksums(torch, self.right_there, weights))
        given = checksums(torch, plain, weights)
        rows = (odd | (wanted != given)).nonzero().flatten().tolist()
        probe_gpu.at("rows on the CPU")
        return self.located(product, rows) if rows else self.sampled(product)

    def sampled(self, product: Any) -> dict[str, Any] | None:
        """Compare some rows with those that the CPU computes."""
        rows = self.torch.randint(0, self.shape[0], (4,), generator=self.random).tolist()
        fault = self.located(product, rows)
        return None if fault["what"] == "checksum" else fault

    def located(self, product: Any, rows: list[int]) -> dict[str, Any]:
        """Return which numbers of some rows are wrong, by the CPU's own matrices; `checksum` when none is."""
        some = self.torch.tensor(sorted(set(rows))[:LOOKED_AT])
        wanted = exact(self.torch, self.left[some], self.right)
        given = product[some.to(product.device)].to("cpu").to(self.torch.float64)
        places = (wanted != given).nonzero().tolist()
        if not places:
            return {"what": "checksum", "rows": len(rows)}
        row, column = places[0]
        return {
            "what": "product",
            "rows": len(rows),
            "count": len(places),
            "index": [int(some[row]), column],
            "expected": int(wanted[row, column]),
            "got": repr(float(given[row, column])),
        }


def matrices(torch: Any, shape: list[int], bound: int, random: Any) -> tuple[Any, Any]:
    """Return a left matrix with at most `bound` non-zero numbers in a row, and a right one without any zero."""
    rows, columns, inner = shape
    every = -(-inner // bound)
    signs = torch.randint(0, 2, (rows, inner), generator=random, dtype=torch.int8) * 2 - 1
    first = torch.randint(0, every, (rows, 1), generator=random)
    left = signs * (torch.arange(inner) % every == first)
    return left, torch.randint(0, 2, (inner, columns), generator=random, dtype=torch.int8) * 2 - 1


def checksums(torch: Any, matrix: Any, weights: Any) -> Any:
    """
    Return the weighted sum of each row in 64-bit integers, without the units that multiply matrices.

    All weights are 1 or more, so that a single wrong number in a row always changes its sum (Freivalds).
    """
    sums = [(rows.to(torch.int64) * weights).sum(dim=1) for rows in matrix.split(ROWS_AT_ONCE)]
    return torch.cat(sums)


def exact(torch: Any, left: Any, right: Any) -> Any:
    """Return the product of two matrices of small integers, computed on the CPU, where float64 holds it exactly."""
    parts = [left.to(torch.float64) @ columns.to(torch.float64) for columns in right.split(1024, dim=1)]
    return torch.cat(parts, dim=1)
