"""Gadgets: the parts of a validity circuit that are not affine (draft-irtf-cfrg-vdaf-20, annex A).

Each of the draft's gadgets is a sum of products of two inputs, so that one compiled loop serves
all. An input is a wire, or, in `PolyEval`, a wire less one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from randquant.secure_sums.vdaf.field import Field, Vector


class Gadget(Protocol):
    """A sub-circuit of degree 2.

    Attributes:
        ARITY: number of wires.
    """

    ARITY: int

    def factors(self, field: Field, wires: Vector) -> tuple[Vector, Vector]:
        """What is multiplied, for one value of each wire: (n,) left and (n,) right factors."""
        ...

    def wires(self, left: Vector, right: Vector) -> Vector:
        """Invert `factors`."""
        ...


DEGREE = 2
"""Of every gadget."""


def evaluate(gadget: Gadget, field: Field, wires: Vector) -> Vector:
    """Compute a gadget's output for one value of each wire (`Gadget.eval` of the draft)."""
    return field.dot(*gadget.factors(field, wires))


class ParallelSum:
    """The sum of `count` products (A.3 with `Mul` as its sub-circuit)."""

    def __init__(self, count: int) -> None:
        self.ARITY = 2 * count

    def factors(self, field: Field, wires: Vector) -> tuple[Vector, Vector]:
        """Wires 0, 2, 4, ... and wires 1, 3, 5, ...."""
        return np.ascontiguousarray(wires[0::2]), np.ascontiguousarray(wires[1::2])

    def wires(self, left: Vector, right: Vector) -> Vector:
        """One by one in turn."""
        return np.stack([left, right], axis=1).reshape(-1, *left.shape[1:])


class Mul(ParallelSum):
    """One product (A.1)."""

    def __init__(self) -> None:
        super().__init__(1)


class PolyEval:
    """The polynomial x**2 - x = x * (x - 1), the only one that the draft evaluates (A.2)."""

    ARITY = 1

    def factors(self, field: Field, wires: Vector) -> tuple[Vector, Vector]:
        """A wire, and the same wire less one."""
        return wires, field.vec_sub(wires, field.of([1] * len(wires)))

    def wires(self, left: Vector, right: Vector) -> Vector:
        """The left factors."""
        return left
