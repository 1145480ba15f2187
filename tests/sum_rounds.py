"""Whole secure sums for tests: a client or the way to it may do anything, the server is honest."""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from randquant.secure_sums import Client, ProtocolError, SumServer, Terms

STEPS = ("advertise", "share", "mask", "confirm", "reveal")


def terms_of(count, dimension=5, bits=10, **others):
    others = {"least": 2, "neighbours": count - 1, **others}
    return Terms(os.urandom(8), tuple(range(count)), dimension, bits, **others)


def vectors_of(terms, levels=4, seed=0):
    draw = np.random.default_rng(seed)
    return {c: draw.integers(0, levels, terms.dimension, dtype=np.uint8) for c in terms.clients}


def signers(clients):
    """Identities, and the directory that names them."""
    identities = {c: Ed25519PrivateKey.generate() for c in clients}
    return identities, {c: key.public_key().public_bytes_raw() for c, key in identities.items()}


def wanted(vectors, clients):
    return sum(vectors[c].astype(np.uint64) for c in clients)


def at(changes):
    """What arrives, with a change at some (step, client)."""
    return lambda step, client, message: changes.get((step, client), lambda m: m)(message)


class Round:
    """One sum. What clients send goes through `up`, what they get through `down`.

    Both are called with (step, client, message) and give the message that arrives, or None. A
    client that refuses to go on is in `errors`, and gone.
    """

    def __init__(self, terms, vectors=None, up=None, down=None, make=None, **options):
        self.terms, self.vectors = terms, vectors or vectors_of(terms)
        self.up = up or (lambda step, client, message: message)
        self.down = down or (lambda step, client, message: message)
        make = make or {}
        self.clients = {c: make.get(c, Client)(terms, c, **options) for c in terms.clients}
        self.server, self.errors, self.largest = SumServer(terms), {}, None

    def _ask(self, step, inboxes, work):
        answers = {}
        for c, inbox in inboxes.items():
            arrived = self.down(step, c, inbox)
            if arrived is None:
                continue
            try:
                answer = self.up(step, c, work(c, arrived))
            except ProtocolError as error:
                self.errors[c] = str(error)
                continue
            if answer is not None:
                answers[c] = answer
        return answers

    def shared(self):
        """What the server forwards after the first two steps."""
        clients, server = self.clients, self.server
        everyone = {c: {} for c in self.terms.clients}
        adverts = self._ask("advertise", everyone, lambda c, _: clients[c].advertise())
        at = server.introduce(adverts)
        return server.forward(self._ask("share", at, lambda c, inbox: clients[c].share(inbox)))

    def closed(self):
        """The survivors, once all have uploaded."""
        clients, server, vectors = self.clients, self.server, self.vectors
        payloads = self._ask(
            "mask", self.shared(), lambda c, inbox: clients[c].mask(vectors[c], inbox)
        )
        for c, payload in payloads.items():
            try:
                server.add(c, payload)
            except ProtocolError as error:
                self.errors[c] = str(error)
        return server.close()

    def revealed(self):
        clients, server = self.clients, self.server
        told = dict.fromkeys(self.closed(), self.server.close())
        tags = self._ask("confirm", told, lambda c, found: clients[c].confirm(found))
        return self._ask("reveal", server.relay(tags), lambda c, inbox: clients[c].reveal(inbox))

    def total(self):
        """The sum; `survivors` are in it."""
        answers = self.revealed()
        self.survivors = self.server.close()
        return self.server.unmask(answers, self.largest)

    def exact(self):
        """Whether the sum is that of the survivors' vectors."""
        return bool(np.array_equal(self.total(), wanted(self.vectors, self.survivors)))
