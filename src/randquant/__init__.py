"""randquant: private federated learning in a few random bits per coordinate.

The distribution that is certified is the distribution that is sampled, bit for bit, and every
privacy figure printed is a proven bound for the whole run.
"""

from types import ModuleType

from randquant.account import ChannelRelease, GaussianRelease, account
from randquant.certify import Certificate, certify, certify_pair
from randquant.channel import Channel
from randquant.encode import decode, encode
from randquant.keys import Key
from randquant.mechanisms import erm, pbm, qmgeo, register, rqm, stochastic_rounding, two_bins
from randquant.moments import Moments, moments
from randquant.privacy import Guarantee, Interval

__all__ = [
    "Certificate",
    "Channel",
    "ChannelRelease",
    "GaussianRelease",
    "Guarantee",
    "Interval",
    "Key",
    "Moments",
    "account",
    "certify",
    "certify_pair",
    "decode",
    "design",  # pyright: ignore[reportUnsupportedDunderAll]
    "encode",
    "erm",
    "moments",
    "pbm",
    "qmgeo",
    "register",
    "rqm",
    "stochastic_rounding",
    "two_bins",
]


def __getattr__(name: str) -> ModuleType:
    """Import `rq.design` when it is first used: its solver is slow to import."""
    if name == "design":
        import importlib

        return importlib.import_module("randquant.design")
    raise AttributeError(f"module 'randquant' has no attribute {name!r}")
