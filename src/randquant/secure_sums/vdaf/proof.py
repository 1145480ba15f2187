"""The fully linear proof of a validity circuit (draft-irtf-cfrg-vdaf-20, section 7.3)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from randquant.secure_sums.vdaf import kernel
from randquant.secure_sums.vdaf.circuits import Valid
from randquant.secure_sums.vdaf.field import Vector
from randquant.secure_sums.vdaf.gadgets import DEGREE, evaluate


class Flp:
    """Proofs that a circuit accepts a measurement, checked on shares of both.

    Names are those of the draft. Memory is that of the proof, whatever the measurement's length.

    Args:
        valid: the circuit.
    """

    def __init__(self, valid: Valid) -> None:
        self.valid, self.field = valid, valid.field
        arity, outputs = valid.GADGET.ARITY, valid.EVAL_OUTPUT_LEN
        self._size = 1 << valid.GADGET_CALLS.bit_length()
        """Of a wire polynomial: the power of two that fits all calls and the seed."""
        self._poly_len = DEGREE * (self._size - 1) + 1
        self.MEAS_LEN, self.OUTPUT_LEN = valid.MEAS_LEN, valid.OUTPUT_LEN
        self.JOINT_RAND_LEN, self.PROVE_RAND_LEN = valid.JOINT_RAND_LEN, arity
        self.QUERY_RAND_LEN = 1 + (outputs if outputs > 1 else 0)
        self.PROOF_LEN, self.VERIFIER_LEN = arity + self._poly_len, arity + 2

    @property
    def error(self) -> Fraction:
        """Bound of the probability that a proof of an invalid measurement is accepted.

        It is of one proof, over joint and query randomness (theory/vdaf.md, Proposition 1).
        """
        chunk = self.valid.GADGET.ARITY // 2 if self.JOINT_RAND_LEN else 0
        tried = chunk + int(self.valid.EVAL_OUTPUT_LEN > 1) + DEGREE * (self._size - 1)
        return Fraction(tried, self.field.MODULUS - self._size)

    def prove(self, meas: Vector, prove_rand: Vector, joint_rand: Vector) -> Vector:
        """Prove that a measurement is valid (section 7.3.3).

        The proof is the wires' seeds and the gadget polynomial: with the wire polynomials, which
        have their seed at root 0 and their value in call k at root k, put into the gadget.
        """
        factors, shift = self.valid.wires(joint_rand, 1)
        seeds = self.valid.GADGET.factors(self.field, prove_rand)
        poly = self.field.zeros(2 * self._size)
        roots, scales = self._roots(), self.field.half_way(self._size)
        kernel.product_poly(meas, factors, shift, *seeds, roots, scales, poly)
        return np.concatenate([prove_rand, poly[: self._poly_len]])

    def query(
        self, meas: Vector, proof: Vector, query_rand: Vector, joint_rand: Vector, num_shares: int
    ) -> Vector:
        """Compute (a share of) the verifier: the circuit's output, and the test of the gadget.

        Section 7.3.4.

        Raises:
            ValueError: the query's point is a root of unity, where the verifier would say something
                of the measurement.
        """
        gadget, calls = self.valid.GADGET, self.valid.GADGET_CALLS
        seeds, poly = proof[: gadget.ARITY], self._extended(proof[gadget.ARITY :])
        outputs = np.ascontiguousarray(poly[2 : 2 * calls + 1 : 2])
        out = self.valid.eval(meas, outputs, num_shares)
        rand, point = query_rand[:-1], self.field.integers(query_rand[-1:])[0]
        output = self.field.dot(out, rand) if len(rand) else out
        if pow(point, self._size, self.field.MODULUS) == 1:
            raise ValueError("Expected a query beside the roots of unity, got one of them.")
        left, right = self._wire_checks(meas, seeds, joint_rand, num_shares, point)
        gadget_check = self.field.dot(poly, self.field.lagrange(2 * self._size, point))
        return np.concatenate([output, gadget.wires(left, right), gadget_check])

    def decide(self, verifier: Vector) -> bool:
        """Whether the circuit's output is zero, and the gadget's test is passed (section 7.3.5)."""
        output, wire_checks, gadget_check = verifier[:1], verifier[1:-1], verifier[-1:]
        gadget = evaluate(self.valid.GADGET, self.field, wire_checks)
        return not output.any() and bool((gadget == gadget_check).all())

    def _wire_checks(
        self, meas: Vector, seeds: Vector, joint_rand: Vector, num_shares: int, point: int
    ) -> tuple[Vector, Vector]:
        """Evaluate (a share of) each wire polynomial at a point."""
        factors, shift = self.valid.wires(joint_rand, num_shares)
        left, right = self.valid.GADGET.factors(self.field, seeds.copy())
        weights = self.field.lagrange(self._size, point)
        kernel.wire_checks(meas, factors, shift, weights, left, right)
        return left, right

    def _extended(self, poly: Vector) -> Vector:
        """Append the gadget polynomial's value at the last of the 2p roots.

        Its coefficient of degree 2p - 1 is zero, that is, so is the sum of root**k * value k.
        (`extend_values_to_power_of_2` of the draft, of which one value is missing here.)
        """
        roots = self._roots()
        rest = self.field.dot(poly, roots[: len(poly)])
        negated = self.field.vec_sub(self.field.zeros(1), rest)
        return np.concatenate([poly, self.field.dot(negated, roots[1:2])])

    def _roots(self) -> Vector:
        return self.field.nth_root_powers(2 * self._size)
