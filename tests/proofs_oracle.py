"""The fully linear proof of draft-irtf-cfrg-vdaf-20, section 7.3, slowly, in Python integers.

Polynomials are interpolated through all their points with the textbook's formula; a wire's values
are listed, and nothing is transformed, shared between proofs or computed in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np


@dataclass(frozen=True)
class Slow:
    """Arithmetic modulo a prime, one integer at a time."""

    modulus: int
    order: int

    def roots(self, n: int) -> list[int]:
        """All n-th roots of unity, as powers of the principal one."""
        generator = pow(7, (self.modulus - 1) // self.order, self.modulus)
        root = pow(generator, self.order // n, self.modulus)
        return [pow(root, k, self.modulus) for k in range(n)]

    def interpolate(self, points: list[int], values: list[int], x: int) -> int:
        """The value at x of the polynomial through these points."""
        total = 0
        for i, (point, value) in enumerate(zip(points, values, strict=True)):
            others = points[:i] + points[i + 1 :]
            above, below = prod(x - o for o in others), prod(point - o for o in others)
            total += value * above * pow(below, -1, self.modulus)
        return total % self.modulus

    def wires(
        self, meas: list[int], factors: list[int], chunk: int, seeds: list[int], shift: int
    ) -> list[list[int]]:
        """The values of each wire of a range check: its seed, then one a call, then zeros."""
        size = 1 << len(factors).bit_length()
        wires = [[seed] + [0] * (size - 1) for seed in seeds]
        for k, factor in enumerate(factors):
            for j in range(chunk):
                at = k * chunk + j
                m = meas[at] if at < len(meas) else 0
                wires[2 * j][k + 1] = pow(factor, j + 1, self.modulus) * m % self.modulus
                wires[2 * j + 1][k + 1] = (m - shift) % self.modulus
        return wires

    def prove(self, meas: list[int], factors: list[int], chunk: int, seeds: list[int]) -> list[int]:
        """Seeds, and the gadget polynomial at all 2p-th roots of unity but the last."""
        wires = self.wires(meas, factors, chunk, seeds, 1)
        size = len(wires[0])
        roots, poly = self.roots(size), []
        for x in self.roots(2 * size)[:-1]:
            at = [self.interpolate(roots, wire, x) for wire in wires]
            poly.append(sum(a * b for a, b in zip(at[::2], at[1::2], strict=True)) % self.modulus)
        return [*seeds, *poly]

    def query(
        self, meas: list[int], proof: list[int], factors: list[int], chunk: int, point: int,
        num_shares: int,
    ) -> list[int]:  # fmt: skip
        """The sum of the gadget's outputs; wires and gadget polynomial at a point."""
        seeds, poly = proof[: 2 * chunk], proof[2 * chunk :]
        shift = pow(num_shares, -1, self.modulus)
        wires = self.wires(meas, factors, chunk, seeds, shift)
        size = len(wires[0])
        output = sum(poly[2 * k + 2] for k in range(len(factors))) % self.modulus
        checks = [self.interpolate(self.roots(size), wire, point) for wire in wires]
        gadget = self.interpolate(self.roots(2 * size)[:-1], poly, point)
        return [output, *checks, gadget]


SLOW = Slow(2**32 * 4294967295 + 1, 2**32)
"""Field64: its modulus, and the order of the group of roots of unity (section 6.1.4)."""


def edges(modulus: int, draw: np.random.Generator) -> list[int]:
    """Numbers near those where words overflow, and random ones."""
    near = [0, 2**32, 2**63, 2**64, modulus // 2, modulus]
    numbers = [(number + by) % modulus for number in near for by in (-2, -1, 0, 1, 2)]
    return numbers + [int.from_bytes(draw.bytes(16), "little") % modulus for _ in range(40)]
