"""Prio3: a fully linear proof checked by two aggregators (draft-irtf-cfrg-vdaf-20, section 7).

Names and order are those of section 7.2, without the aggregation parameter, which Prio3 does not
use.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from randquant._internal import validate
from randquant.secure_sums.helper import field_kernel
from randquant.secure_sums.helper.circuits import (
    GADGET_DEGREE,
    SumVec,
    Vector,
    XofTurboShake128,
    format_dst,
)

# The fully linear proof of a validity circuit (draft-irtf-cfrg-vdaf-20, section 7.3).


class Flp:
    """Proofs that a circuit accepts a measurement, checked on shares of both.

    Names are those of the draft. It needs memory for one proof, whose length is about the square
    root of the measurement's.

    Args:
        valid: the circuit.
    """

    def __init__(self, valid: SumVec) -> None:
        self.valid, self.field = valid, valid.field
        arity = valid.GADGET.ARITY
        self._size = 1 << valid.GADGET_CALLS.bit_length()
        """Length of a wire polynomial: the power of two that holds all calls and the seed."""
        self._poly_len = GADGET_DEGREE * (self._size - 1) + 1
        self.MEAS_LEN, self.OUTPUT_LEN = valid.MEAS_LEN, valid.OUTPUT_LEN
        self.JOINT_RAND_LEN, self.PROVE_RAND_LEN = valid.JOINT_RAND_LEN, arity
        self.QUERY_RAND_LEN = 1
        self.PROOF_LEN, self.VERIFIER_LEN = arity + self._poly_len, arity + 2

    @property
    def error(self) -> Fraction:
        """Bound of the probability that a proof of an invalid measurement is accepted.

        It is that of one proof, over joint and query randomness (theory/vdaf.md, Proposition 1).
        """
        bad_points = self.valid.GADGET.ARITY // 2 + GADGET_DEGREE * (self._size - 1)
        return Fraction(bad_points, self.field.MODULUS - self._size)

    def prove(self, meas: Vector, prove_rand: Vector, joint_rand: Vector) -> Vector:
        """Prove that a measurement is valid (section 7.3.3).

        The proof is the wires' seeds and the gadget polynomial: with the wire polynomials, which
        have their seed at root 0 and their value in call k at root k, put into the gadget.
        """
        factors, shift = self.valid.wires(joint_rand, 1)
        seeds = self.valid.GADGET.factors(prove_rand)
        poly = self.field.zeros(2 * self._size)
        roots, scales = self._roots(), self.field.odd_value_scales(self._size)
        field_kernel.product_poly(meas, factors, shift, *seeds, roots, scales, poly)
        return np.concatenate([prove_rand, poly[: self._poly_len]])

    def query(
        self, meas: Vector, proof: Vector, query_rand: Vector, joint_rand: Vector, num_shares: int
    ) -> Vector:
        """Compute (a share of) the verifier: the circuit's output, and the test of the gadget.

        Section 7.3.4.

        Raises:
            ValueError: the query's point is a root of unity, where the verifier would reveal
                something about the measurement.
        """
        gadget, calls = self.valid.GADGET, self.valid.GADGET_CALLS
        seeds, poly = proof[: gadget.ARITY], self._extended(proof[gadget.ARITY :])
        outputs = np.ascontiguousarray(poly[2 : 2 * calls + 1 : 2])
        output, (point,) = self.valid.eval(outputs), self.field.integers(query_rand)
        # At a root a wire's value is that of one call, and no longer hidden by the wire's seed.
        if pow(point, self._size, self.field.MODULUS) == 1:
            raise ValueError(
                "Expected a query's point outside the roots of unity, got one of the "
                f"{self._size} roots."
            )
        left, right = self._wire_checks(meas, seeds, joint_rand, num_shares, point)
        gadget_check = self.field.dot(poly, self.field.lagrange(2 * self._size, point))
        return np.concatenate([output, gadget.wires(left, right), gadget_check])

    def decide(self, verifier: Vector) -> bool:
        """Return True if the circuit's output is zero and the gadget's test passes (7.3.5)."""
        output, wire_checks, gadget_check = verifier[:1], verifier[1:-1], verifier[-1:]
        gadget = self.field.dot(*self.valid.GADGET.factors(wire_checks))
        return not output.any() and bool((gadget == gadget_check).all())

    def _wire_checks(
        self, meas: Vector, seeds: Vector, joint_rand: Vector, num_shares: int, point: int
    ) -> tuple[Vector, Vector]:
        # The value of (a share of) each wire polynomial at a point.
        factors, shift = self.valid.wires(joint_rand, num_shares)
        left, right = self.valid.GADGET.factors(seeds.copy())
        weights = self.field.lagrange(self._size, point)
        field_kernel.wire_checks(meas, factors, shift, weights, left, right)
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


USAGE_MEAS_SHARE, USAGE_PROOF_SHARE, USAGE_JOINT_RANDOMNESS, USAGE_PROVE_RANDOMNESS = 1, 2, 3, 4
USAGE_QUERY_RANDOMNESS, USAGE_JOINT_RAND_SEED, USAGE_JOINT_RAND_PART = 5, 6, 7
SEED_SIZE = XofTurboShake128.SEED_SIZE

PublicShare = list[bytes]
"""The joint randomness parts, one for each aggregator."""


class LeaderShare(NamedTuple):
    """Input share of aggregator 0."""

    meas_share: Vector
    proofs_share: Vector
    blind: bytes


class HelperShare(NamedTuple):
    """Input share of aggregator 1."""

    share: bytes
    blind: bytes


class VerifyState(NamedTuple):
    """An aggregator's state until the verifier message arrives."""

    out_share: Vector
    corrected_joint_rand_seed: bytes


class VerifierShare(NamedTuple):
    """An aggregator's message to the other aggregators."""

    verifiers_share: Vector
    joint_rand_part: bytes


class Prio3:
    """Prio3 with two aggregators, a leader and a helper, and some number of proofs.

    Each step is deterministic. A report that any step refuses with a ValueError must not be added
    up. The rules that the draft leaves to the application are the caller's: a secret verification
    key that is fixed before reports come, nonces drawn by clients, each report verified and added
    up once, and batches of more than one (`docs/theory/vdaf.md`).

    Args:
        valid: the validity circuit, with its field.
        algorithm: the identifier, section 10; 0xFFFF0000 and more are for private use.
        proofs: 1 to 255. Field64 needs 3 (section 9.7).

    Guarantees:
        With valid measurements and undamaged messages, every step succeeds and the sum is exact.

    Example:
        See `SumVec`.
    """

    NONCE_SIZE, VERIFY_KEY_SIZE, ROUNDS, SHARES = 16, SEED_SIZE, 1, 2
    RAND_SIZE = 4 * SEED_SIZE

    def __init__(self, valid: SumVec, algorithm: int, proofs: int = 1) -> None:
        self.ID = validate.whole("algorithm", algorithm, low=0, high=2**32 - 1)
        self.PROOFS = validate.whole("proofs", proofs, low=1, high=255)
        self.flp, self.field = Flp(valid), valid.field

    def shard(
        self, ctx: bytes, measurement: Sequence[int] | np.ndarray, nonce: bytes, rand: bytes
    ) -> tuple[PublicShare, tuple[LeaderShare, HelperShare]]:
        """Split a measurement, with its proofs, into a public share and input shares (7.2.1).

        Args:
            ctx: the application context.
            measurement: as the circuit takes it.
            nonce: 16 fresh random bytes.
            rand: RAND_SIZE fresh random bytes.

        Raises:
            ValueError: an argument has another length, or the measurement is invalid.
        """
        _check_size("nonce", nonce, self.NONCE_SIZE)
        _check_size("rand", rand, self.RAND_SIZE)
        # In the draft's order: another one would make messages that no other implementation reads.
        helper = HelperShare(rand[:SEED_SIZE], rand[SEED_SIZE : 2 * SEED_SIZE])
        leader_blind, prove_seed = rand[2 * SEED_SIZE : 3 * SEED_SIZE], rand[3 * SEED_SIZE :]
        # The leader's share is the measurement less the helper's, which follows from a short seed:
        # only one long share travels.
        meas = self.flp.valid.encode(measurement)
        helper_meas_share = self.helper_meas_share(ctx, 1, helper.share)
        leader_meas_share = self.field.vec_sub(meas, helper_meas_share)
        parts = [
            self.joint_rand_part(ctx, 0, leader_blind, leader_meas_share, nonce),
            self.joint_rand_part(ctx, 1, helper.blind, helper_meas_share, nonce),
        ]
        # After all parts: the joint randomness depends on each share of the measurement, so that a
        # client cannot choose a measurement that fits it.
        proofs_share = self._proofs(ctx, meas, parts, prove_seed)
        other = self.helper_proofs_share(ctx, 1, helper.share)
        self.field.vec_sub(proofs_share, other, proofs_share)
        return parts, (LeaderShare(leader_meas_share, proofs_share, leader_blind), helper)

    def verify_init(
        self,
        verify_key: bytes,
        ctx: bytes,
        agg_id: int,
        nonce: bytes,
        public_share: PublicShare,
        input_share: LeaderShare | HelperShare,
    ) -> tuple[VerifyState, VerifierShare]:
        """Query an aggregator's share of measurement and proofs (section 7.2.2).

        Args:
            verify_key: 32 bytes that all aggregators have, and no client.
            ctx: the application context.
            agg_id: 0 for the leader, which has a `LeaderShare`.
            nonce, public_share: those of the report.
            input_share: this aggregator's.
        """
        _check_size("verify_key", verify_key, self.VERIFY_KEY_SIZE)
        _check_size("nonce", nonce, self.NONCE_SIZE)
        meas_share, proofs_share, blind = self.expand_input_share(ctx, agg_id, input_share)
        if len(public_share) != self.SHARES:
            raise ValueError(
                f"Expected {self.SHARES} joint randomness parts, got {len(public_share)}."
            )
        # Its own part is computed again and not believed: a client that proved with another joint
        # randomness than that of the shares is found out by `verify_next`.
        part = self.joint_rand_part(ctx, agg_id, blind, meas_share, nonce)
        parts = [*public_share[:agg_id], part, *public_share[agg_id + 1 :]]
        corrected_seed = self.joint_rand_seed(ctx, parts)
        joint_rands = self.joint_rands(ctx, corrected_seed)
        query_rands = self.query_rands(verify_key, ctx, nonce)
        verifiers = [
            self.flp.query(meas_share, proof_share, query_rand, joint_rand, self.SHARES)
            for proof_share, query_rand, joint_rand in zip(
                self._each(proofs_share), self._each(query_rands), self._each(joint_rands),
                strict=True,
            )
        ]  # fmt: skip
        state = VerifyState(self.flp.valid.truncate(meas_share), corrected_seed)
        return state, VerifierShare(np.concatenate(verifiers), part)

    def verifier_shares_to_message(
        self, ctx: bytes, verifier_shares: Sequence[VerifierShare]
    ) -> bytes:
        """Combine all aggregators' verifier shares, in order, and decide each proof (7.2.2).

        Raises:
            ValueError: a proof is not accepted: the report is invalid.
        """
        # Checked first: with a share missing every proof would fail, and the client be blamed.
        if len(verifier_shares) != self.SHARES:
            raise ValueError(f"Expected {self.SHARES} shares, got {len(verifier_shares)}.")
        verifiers = self.field.zeros(self.flp.VERIFIER_LEN * self.PROOFS)
        for share in verifier_shares:
            verifiers = self.field.vec_add(verifiers, share.verifiers_share)
        refused = sum(not self.flp.decide(verifier) for verifier in self._each(verifiers))
        if refused:
            raise ValueError(
                f"Expected proofs of a valid measurement, got {refused} of {self.PROOFS} that are "
                "not."
            )
        return self.joint_rand_seed(ctx, [share.joint_rand_part for share in verifier_shares])

    def verify_next(self, verify_state: VerifyState, verifier_message: bytes) -> Vector:
        """Return the output share, if the client used the right joint randomness (section 7.2.2).

        Raises:
            ValueError: it used another one: the report is invalid.
        """
        if not hmac.compare_digest(verify_state.corrected_joint_rand_seed, verifier_message):
            raise ValueError("Expected the joint randomness that the client proved with.")
        return verify_state.out_share

    def agg_init(self) -> Vector:
        return self.field.zeros(self.flp.OUTPUT_LEN)

    def agg_update(self, agg_share: Vector, out_share: Vector) -> Vector:
        # In place (section 7.2.4).
        return self.field.vec_add(agg_share, out_share, agg_share)

    def helper_meas_share(self, ctx: bytes, agg_id: int, share: bytes) -> Vector:
        return self._vector(USAGE_MEAS_SHARE, ctx, share, bytes([agg_id]), self.flp.MEAS_LEN)

    def helper_proofs_share(self, ctx: bytes, agg_id: int, share: bytes) -> Vector:
        binder, length = bytes([self.PROOFS, agg_id]), self.flp.PROOF_LEN * self.PROOFS
        return self._vector(USAGE_PROOF_SHARE, ctx, share, binder, length)

    def expand_input_share(
        self, ctx: bytes, agg_id: int, input_share: LeaderShare | HelperShare
    ) -> LeaderShare:
        # As vectors: a helper's share is expanded from its seed (section 7.2.6).
        if isinstance(input_share, LeaderShare) != (agg_id == 0):
            raise ValueError(
                f"Expected the input share of aggregator {agg_id}, got a "
                f"{type(input_share).__name__}."
            )
        if isinstance(input_share, LeaderShare):
            return input_share
        meas_share = self.helper_meas_share(ctx, agg_id, input_share.share)
        proofs_share = self.helper_proofs_share(ctx, agg_id, input_share.share)
        return LeaderShare(meas_share, proofs_share, input_share.blind)

    def prove_rands(self, ctx: bytes, prove_seed: bytes) -> Vector:
        # The client's randomness for all proofs.
        length = self.flp.PROVE_RAND_LEN * self.PROOFS
        return self._vector(USAGE_PROVE_RANDOMNESS, ctx, prove_seed, bytes([self.PROOFS]), length)

    def query_rands(self, verify_key: bytes, ctx: bytes, nonce: bytes) -> Vector:
        # The aggregators' randomness for all queries. It depends on the key, which no client knows,
        # and on the client's nonce, so that neither side chooses the point.
        binder, length = bytes([self.PROOFS]) + nonce, self.flp.QUERY_RAND_LEN * self.PROOFS
        return self._vector(USAGE_QUERY_RANDOMNESS, ctx, verify_key, binder, length)

    def joint_rand_part(
        self, ctx: bytes, agg_id: int, blind: bytes, meas_share: Vector, nonce: bytes
    ) -> bytes:
        # A share's part of the joint randomness: a client that changes a share changes it.
        tag, encoded = self._tag(USAGE_JOINT_RAND_PART, ctx), self.field.encode_vec(meas_share)
        return XofTurboShake128.derive_seed(blind, tag, bytes([agg_id]) + nonce, encoded)

    def joint_rand_seed(self, ctx: bytes, parts: Sequence[bytes]) -> bytes:
        tag, binder = self._tag(USAGE_JOINT_RAND_SEED, ctx), b"".join(parts)
        return XofTurboShake128.derive_seed(bytes(SEED_SIZE), tag, binder)

    def joint_rands(self, ctx: bytes, joint_rand_seed: bytes) -> Vector:
        length = self.flp.JOINT_RAND_LEN * self.PROOFS
        return self._vector(
            USAGE_JOINT_RANDOMNESS, ctx, joint_rand_seed, bytes([self.PROOFS]), length
        )

    def _proofs(
        self, ctx: bytes, meas: Vector, parts: Sequence[bytes], prove_seed: bytes
    ) -> Vector:
        prove_rands = self.prove_rands(ctx, prove_seed)
        joint_rands = self.joint_rands(ctx, self.joint_rand_seed(ctx, parts))
        rands = zip(self._each(prove_rands), self._each(joint_rands), strict=True)
        return np.concatenate([self.flp.prove(meas, *proof_rands) for proof_rands in rands])

    def _each(self, vector: Vector) -> list[Vector]:
        # By proof: `front` of the draft.
        return np.split(vector, self.PROOFS)

    def _tag(self, usage: int, ctx: bytes) -> bytes:
        # `domain_separation_tag` of the draft, section 5.
        return format_dst(0, self.ID, usage) + ctx

    def _vector(self, usage: int, ctx: bytes, seed: bytes, binder: bytes, length: int) -> Vector:
        tag = self._tag(usage, ctx)
        return XofTurboShake128.expand_into_vec(self.field, seed, tag, binder, length)


def _check_size(name: str, value: bytes, size: int) -> None:
    if len(value) != size:
        raise ValueError(f"Expected {size} bytes of {name}, got {len(value)}.")


# Messages in bytes (section 7.2.7). A decoded message has exactly its length, and numbers below the
# modulus: anything else is a ValueError, since aggregators decode what hostile clients send.


def encode_public_share(public_share: PublicShare) -> bytes:
    return b"".join(public_share)


def decode_public_share(prio3: Prio3, encoded: bytes) -> PublicShare:
    _check_size("message", encoded, SEED_SIZE * prio3.SHARES)
    return [encoded[i : i + SEED_SIZE] for i in range(0, len(encoded), SEED_SIZE)]


def encode_input_share(prio3: Prio3, share: LeaderShare | HelperShare) -> bytes:
    if isinstance(share, HelperShare):
        return share.share + share.blind
    encode = prio3.field.encode_vec
    return b"".join([encode(share.meas_share), encode(share.proofs_share), share.blind])


def decode_input_share(prio3: Prio3, agg_id: int, encoded: bytes) -> LeaderShare | HelperShare:
    """Decode the input share of aggregator `agg_id`."""
    end = leader_share_size(prio3) if agg_id == 0 else SEED_SIZE
    _check_size("message", encoded, end + SEED_SIZE)
    blind = encoded[end:]
    if agg_id:
        return HelperShare(encoded[:end], blind)
    vector = prio3.field.decode_vec(memoryview(encoded)[:end])
    return LeaderShare(vector[: prio3.flp.MEAS_LEN], vector[prio3.flp.MEAS_LEN :], blind)


def encode_verifier_share(prio3: Prio3, share: VerifierShare) -> bytes:
    return bytes(prio3.field.encode_vec(share.verifiers_share)) + share.joint_rand_part


def decode_verifier_share(prio3: Prio3, encoded: bytes) -> VerifierShare:
    end = prio3.flp.VERIFIER_LEN * prio3.PROOFS * prio3.field.ENCODED_SIZE
    _check_size("message", encoded, end + SEED_SIZE)
    return VerifierShare(prio3.field.decode_vec(encoded[:end]), encoded[end:])


def leader_share_size(prio3: Prio3) -> int:
    # In bytes, without the blind.
    flp = prio3.flp
    return (flp.MEAS_LEN + flp.PROOF_LEN * prio3.PROOFS) * prio3.field.ENCODED_SIZE
