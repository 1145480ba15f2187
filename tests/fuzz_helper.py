"""Hostile bytes in a sum with a helper: terms, a client's message, a request, an answer."""

from __future__ import annotations

import functools
import hashlib
import random
import tempfile
from pathlib import Path

from damage import damaged, damaged_json
from helper_sums import codes_of, collected, helper_in, messages_of, terms_of
from proven_sums import VERIFY_KEY, proven_messages, proven_terms, server_of

from randquant.secure_sums import (
    HelperRequest,
    HelperSum,
    HelperTerms,
    ProtocolError,
    read_answer,
    read_proven,
    write_request,
)

TERMS, MESSAGE, REQUEST, ANSWER = b"t", b"m", b"q", b"a"
"""What an input is; the rest of it is the bytes that are read. Capitals: of proven codes."""


class _Sum:
    """A whole sum, answered."""

    def __init__(self, with_proofs: bool) -> None:
        self.helper = helper_in(Path(tempfile.mkdtemp()))
        self.key = VERIFY_KEY if with_proofs else b""
        if with_proofs:
            self.terms = proven_terms(self.helper, dimension=40)
            self.messages = proven_messages(self.terms, codes_of(self.terms, range(4), 2))
            self.server = server_of(self.terms, self.messages)
        else:
            self.terms = terms_of(self.helper, dimension=400)
            self.messages = messages_of(self.terms, codes_of(self.terms, range(4)))
            self.server = collected(self.terms, self.messages)
        self.request = self.server.request()
        self.answer = self.helper.answer(self.request)


_sum = functools.cache(_Sum)


def seeds() -> list[bytes]:
    """One good input of each kind."""
    found = []
    for with_proofs in (False, True):
        one = _sum(with_proofs)
        kinds = {
            TERMS: one.terms.to_text().encode(), MESSAGE: one.messages[2], REQUEST: one.request,
            ANSWER: one.answer,
        }  # fmt: skip
        found += [(k.upper() if with_proofs else k) + rest for k, rest in kinds.items()]
    return found


def damage(rng: random.Random, data: bytes) -> bytes:
    """The same kind, damaged; of a request often only the terms in it."""
    kind, rest = data[:1], data[1:]
    return kind + (damaged_json if kind.lower() == TERMS else damaged)(rng, rest)


def read(data: bytes, _folder: Path) -> None:
    """Read and check an input; ValueError if it is refused."""
    one, kind, rest = _sum(data[:1].isupper()), data[:1].lower(), data[1:]
    if kind == TERMS:
        terms = HelperTerms.from_text(rest.decode(errors="replace"))
        assert HelperTerms.from_text(terms.to_text()) == terms, "no way back"
        assert 2 <= terms.least <= terms.cohort, "other bounds"
    elif kind == MESSAGE:
        server = HelperSum(one.terms, None, one.key)
        try:
            server.add(2, rest)
        except ProtocolError:
            raise ProtocolError(server.refused[2]) from None
        if one.key:  # the proofs themselves are the helper's to judge
            codes, sent = (read_proven(one.terms, m)[1].meas_share for m in (rest, one.messages[2]))
            assert (codes == sent).all(), "another share of the codes"
        else:
            assert rest[-500:] == one.messages[2][-500:], "another vector"
    elif kind == REQUEST:
        found = HelperRequest.from_bytes(rest)
        assert list(found.seeds) == sorted(found.seeds), "clients twice"
        assert found.digest == hashlib.sha256(rest).digest(), "another request's digest"
        again = HelperRequest.from_bytes(
            write_request(found.terms, found.seeds, found.offer, found.verify_key)
        )
        assert (again.terms, again.offer) == (found.terms, found.offer), "no way back"
        one.helper.answer(rest)
        assert rest == one.request, "two sets of clients in one session"
    else:
        digest = hashlib.sha256(one.request).digest()
        read_answer(one.terms, digest, one.server._seeds, rest)
        assert rest == one.answer, "another answer"
