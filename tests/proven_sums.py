"""Whole sums of proven codes for tests: honest clients, and some that send what they like."""

from __future__ import annotations

import dataclasses
import os
from unittest import mock

import numpy as np
from helper_sums import PINNED, terms_of
from proofs_oracle import SLOW
from vdaf_reports import Claimed

from randquant.secure_sums import (
    Field64,
    HelperSum,
    LeaderShare,
    Prio3,
    ProtocolError,
    decode_public_share,
    encode_input_share,
)
from randquant.secure_sums.helper import proven
from randquant.secure_sums.helper.message import context

VERIFY_KEY = bytes(range(100, 132))
COMMITMENT = proven.verify_key_commitment(VERIFY_KEY)


def proven_terms(helper, largest=1, **others):
    return terms_of(helper, largest=largest, commitment=COMMITMENT, **others)


def proven_messages(terms, codes, identities=None):
    identities = identities or {}
    return {
        c: proven.proven_message(terms, c, x, PINNED, identities.get(c)) for c, x in codes.items()
    }


def server_of(terms, messages, directory=None):
    """A server that has been sent these messages; what it refuses is in `refused`."""
    server = HelperSum(terms, directory, VERIFY_KEY)
    for client, message in messages.items():
        try:
            server.add(client, message)
        except ProtocolError:
            assert client in server.refused
    return server


def lie(terms, client, entries):
    """A message with these entries in the place of bits."""
    honest = proven.prio3_for(terms)
    chunk = honest.flp.valid.GADGET.ARITY // 2
    circuit = Claimed(Field64, terms.dimension, terms.largest, chunk)
    liar = Prio3(circuit, honest.ID, honest.PROOFS)
    with (
        mock.patch.object(proven, "prio3_for", return_value=liar),
        mock.patch.object(proven, "check_codes"),
    ):
        return proven.proven_message(terms, client, np.asarray(entries, object), PINNED)


def two_randomnesses(terms, client):
    """All ones, with a public share that gives server and helper different joint randomness.

    Returns the message and its seed. The client knows both, and proves for the circuit that is
    computed then. In it a wire is r0**(j+1) times the server's share plus r1**(j+1) times the
    helper's, in place of r**(j+1) times the code. With all codes 1 the other wire of each pair is
    zero, and so are all outputs.
    """
    prio3, digest, seed = proven.prio3_for(terms), terms.digest, os.urandom(32)
    flp, field, oracle = prio3.flp, prio3.field, SLOW
    ctx, nonce, share = proven.proof_context(digest), os.urandom(16), proven.helper_share(seed)
    helper_meas = prio3.helper_meas_share(ctx, 1, share.share)
    leader_meas = field.vec_sub(field.vector([1] * terms.dimension), helper_meas)
    blind, wrong = os.urandom(32), os.urandom(32)
    parts = [
        prio3.joint_rand_part(ctx, 0, blind, leader_meas, nonce),
        prio3.joint_rand_part(ctx, 1, share.blind, helper_meas, nonce),
    ]
    public = [parts[0], wrong]
    rands = [
        field.integers(prio3.joint_rands(ctx, prio3.joint_rand_seed(ctx, each)))
        for each in (public, parts)
    ]
    chunk, calls = flp.PROVE_RAND_LEN // 2, flp.JOINT_RAND_LEN
    shares = [field.integers(leader_meas), field.integers(helper_meas)]
    proofs, half = [], pow(2, -1, oracle.modulus)
    for k in range(prio3.PROOFS):
        seeds = [int.from_bytes(os.urandom(7), "big") for _ in range(2 * chunk)]
        wires = [
            oracle.wires(m, r[k * calls : (k + 1) * calls], chunk, seeds, half)
            for m, r in zip(shares, rands, strict=True)
        ]
        both = [[(a + b) % oracle.modulus for a, b in zip(*w, strict=True)]
                for w in zip(*wires, strict=True)]  # fmt: skip
        for wire, start in zip(both, seeds, strict=True):
            wire[0] = start
        size = len(both[0])
        at = [[oracle.interpolate(oracle.roots(size), wire, x) for wire in both]
              for x in oracle.roots(2 * size)[:-1]]  # fmt: skip
        poly = [sum(a * b for a, b in zip(v[::2], v[1::2], strict=True)) for v in at]
        proofs += [*seeds, *poly]
    helper_proofs = prio3.helper_proofs_share(ctx, 1, share.share)
    leader = LeaderShare(leader_meas, field.vec_sub(field.vector(proofs), helper_proofs), blind)
    bound = nonce + b"".join(public)
    sealed = terms.key.seal(seed, context(digest, client) + bound)
    encoded = encode_input_share(prio3, leader)
    return b"".join((proven.MAGIC, bound, sealed, encoded)), seed


def parts_of(terms, message):
    """Where the parts of an unsigned message are: nonce, public share, seal, leader's share."""
    ends = np.cumsum([4, 16, 64, terms.key.sealed_bytes, len(message)])
    names = ("nonce", "public", "sealed", "share")
    return {
        name: slice(int(low), min(int(high), len(message)))
        for name, low, high in zip(names, ends[:-1], ends[1:], strict=True)
    }


def as_prio3(terms, message, seed):
    """What Prio3 by itself says of an opened report: whether the proofs are accepted, and whom."""
    prio3, ctx = proven.prio3_for(terms), proven.proof_context(terms.digest)
    read, leader = proven.read_proven(terms, message)
    public = decode_public_share(prio3, read.bound[16:])
    states, verifiers = zip(
        *(
            prio3.verify_init(VERIFY_KEY, ctx, j, read.bound[:16], public, share)
            for j, share in enumerate((leader, proven.helper_share(seed)))
        ),
        strict=True,
    )
    combined = prio3.verifier_shares_to_message(ctx, verifiers)

    def accepts(state):
        try:
            prio3.verify_next(state, combined)
        except ValueError:
            return False
        return True

    return [accepts(state) for state in states]


def with_verifier(seed, change):
    """A seed whose verifier share a hostile server has changed: one element by one."""
    prio3_bytes = bytearray(seed.verifier)
    at = 8 * change
    number = (int.from_bytes(prio3_bytes[at : at + 8], "little") + 1) % Field64.MODULUS
    prio3_bytes[at : at + 8] = number.to_bytes(8, "little")
    return dataclasses.replace(seed, verifier=bytes(prio3_bytes))
