"""Whole sums with a helper for tests: a server and clients that may do anything to the bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import os

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from randquant.secure_sums import Helper, HelperSum, HelperTerms, masked_message, read_message

IDENTITY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PINNED = IDENTITY.public_key().public_bytes_raw()


def helper_in(folder, limits=None, directory=None, suite="X25519", **options):
    return Helper(folder, IDENTITY, limits, directory, suite, **options)


def terms_of(helper, dimension=5, bits=10, cohort=20, least=2, **others):
    return HelperTerms(os.urandom(8), helper.key, cohort, least, dimension, bits, **others)


def offered_terms(key, offer, cohort, least, session=b"s", bits=None, **others):
    """The text of an offer, and the terms of a sum of its codes with the helper of this key."""
    text, bits = offer.to_text(), offer.sum_bits(cohort) if bits is None else bits
    digest = hashlib.sha256(text.encode()).digest()
    return text, HelperTerms(session, key, cohort, least, offer.size, bits, digest, **others)


def codes_of(terms, clients, levels=4, seed=0):
    draw = np.random.default_rng(seed)
    return {c: draw.integers(0, levels, terms.dimension, dtype=np.uint32) for c in clients}


def messages_of(terms, codes, identities=None):
    identities = identities or {}
    return {c: masked_message(terms, c, x, PINNED, identities.get(c)) for c, x in codes.items()}


def begun(helper, clients, **options):
    """Terms of a sum, codes of these clients, and the messages with them."""
    terms = terms_of(helper, **options)
    codes = codes_of(terms, clients)
    return terms, codes, messages_of(terms, codes)


def seeds_of(terms, messages):
    """What a server has for the helper, by client."""
    return {c: read_message(terms, message)[0] for c, message in messages.items()}


def seeds_in(helper, clients, **options):
    """Terms of a sum, and what a server has of these clients for the helper."""
    terms, _, messages = begun(helper, clients, **options)
    return terms, seeds_of(terms, messages)


def collected(terms, messages, directory=None):
    """A server that has these messages."""
    server = HelperSum(terms, directory)
    for client, message in messages.items():
        server.add(client, message)
    return server


def wanted(codes, clients, bits):
    return sum(codes[c].astype(np.uint64) for c in clients) % 2**bits


def exact(server, answer, codes):
    """Whether the sum is that of the codes of the clients that the server says are in it."""
    total = server.unmask(answer)
    return bool(np.array_equal(total, wanted(codes, server.clients, server.terms.bits)))


def changed(terms, **fields):
    return dataclasses.replace(terms, **fields)
