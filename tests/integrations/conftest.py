"""What a client is about to send, for tests of rounds."""

import pytest

from randquant.aggregation import VectorMechanism
from randquant.integrations.flower import mod


@pytest.fixture(autouse=True)
def logging_anew():
    """Each test is a process of its own to what is logged once."""
    mod.log_once.cache_clear()


@pytest.fixture
def encoded(monkeypatch):
    """(mechanism, payload) of every whole update that is encoded."""
    found, encode = [], VectorMechanism.encode

    def kept(self, update, key):
        found.append((self, encode(self, update, key)))
        return found[-1][1]

    monkeypatch.setattr(VectorMechanism, "encode", kept)
    return found
