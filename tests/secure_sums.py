"""Whole secure sums for tests: a client or the way to it may do anything, the server is honest."""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from randquant.aggregation.secagg.client import Client
from randquant.aggregation.secagg.server import SumServer
from randquant.aggregation.secagg.terms import ProtocolError, Terms

STEPS = ("advertise", "share", "mask", "confirm", "reveal")


def terms_of(count, dimension=5, bits=10, **others):
    others = {"least": 2, "neighbours": count - 1, **others}
    return Terms(os.urandom(8), tuple(range(count)), dimension, bits, **others)


def vectors_of(terms, levels=4, seed=0):
    draw = np.random.default_rng(seed)
    return {c: draw.integers(0, levels, terms.dimension, dtype=np.uint8) for c in terms.clients}


def wanted(vectors, clients):
    return sum(vectors[c].astype(np.uint64) for c in clients)


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


class MixedRound(Round):
    """A sum whose steps are mixed with those of the sum before and the sum after it.

    As on Flower where handshakes are ahead: the sum before uploads, then this one advertises; that
    one confirms, this one shares; that one reveals. This one uploads, the sum after advertises;
    this one confirms, that one shares. The sum before is checked to be exact.
    """

    def __init__(self, terms, *arguments, **options):
        super().__init__(terms, *arguments, **options)
        self.before, self.after = (
            Round(
                dataclasses.replace(terms, session=os.urandom(8)),
                vectors_of(terms, seed=seed),
                threshold=terms.threshold / terms.neighbours,
            )
            for seed in (1, 2)
        )

    def _ask(self, step, inboxes, work):
        before, after = self.before, self.after
        if step == "advertise":
            assert before.closed() == set(self.terms.clients)
        if step == "share":
            survivors = before.server.close()
            self.tags = {c: before.clients[c].confirm(survivors) for c in survivors}
        answers = super()._ask(step, inboxes, work)
        if step == "share":
            relayed = before.server.relay(self.tags)
            shown = {c: before.clients[c].reveal(tags) for c, tags in relayed.items()}
            total = before.server.unmask(shown)
            modulus = 2**self.terms.bits
            assert np.array_equal(total, wanted(before.vectors, before.clients) % modulus)
        if step == "mask":
            adverts = {c: client.advertise() for c, client in after.clients.items()}
            self.keys = after.server.introduce(adverts)
        if step == "confirm":
            dealt = {c: after.clients[c].share(keys) for c, keys in self.keys.items()}
            assert set(after.server.forward(dealt)) == set(self.terms.clients)
        return answers
