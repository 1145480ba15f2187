"""A mechanism around another one: what a test replaces is replaced, all else is the other's."""

from randquant.aggregation import MechanismDefaults


class Around(MechanismDefaults):
    """Calls `inner`, or what is given in place of its encode, mean or release."""

    def __init__(self, inner, encode=None, mean=None, release=None):
        self.inner = inner
        self._encode = encode or inner.encode
        self._mean = mean or inner.mean
        self._release = release or inner.release
        self.trust, self.cohort = inner.trust, inner.cohort
        self.clip_norm, self.channel = inner.clip_norm, inner.channel

    def encode_vector(self, vector, key):
        return self._encode(vector, key)

    def mean_vector(self, payloads, dimension, key):
        return self._mean(payloads, dimension, key)

    def upload_bytes(self, dimension, clients=None):
        return self.inner.upload_bytes(dimension, clients)

    def release(self, dimension, rounds, neighboring="replace_one"):
        return self._release(dimension, rounds, neighboring)

    def audit_inputs(self, neighboring="replace_one"):
        return self.inner.audit_inputs(neighboring)
