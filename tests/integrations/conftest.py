"""What a client is about to send, for tests of rounds."""

import pytest

from randquant.aggregation.rank.mechanism import RankMechanism
from randquant.aggregation.vector import VectorMechanism


@pytest.fixture
def encoded(monkeypatch):
    """(mechanism, payload) of every whole update that is encoded."""
    found = []
    for kind in (VectorMechanism, RankMechanism):

        def kept(self, update, key, encode=kind.encode):
            found.append((self, encode(self, update, key)))
            return found[-1][1]

        monkeypatch.setattr(kind, "encode", kept)
    return found
