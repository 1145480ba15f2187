"""randquant: private federated learning in a few random bits per coordinate.

The distribution that is certified is the distribution that is sampled, bit for bit, and every
privacy figure printed is a proven bound for the whole run.
"""

import importlib
from typing import Any

from randquant.account import account
from randquant.audit import Audit, audit
from randquant.calibrate import Calibration, OutOfReach, calibrate
from randquant.certify import Certificate, certify, certify_pair
from randquant.channel import Channel
from randquant.channel_file import load_channel, save_channel
from randquant.encode import decode, encode
from randquant.geometry import certify_metric, fisher_information
from randquant.keys import Key
from randquant.mechanisms import (
    erm,
    imvu,
    imvu_fisher,
    mvu,
    optm,
    pbm,
    qmgeo,
    register,
    rqm,
    stochastic_rounding,
    two_bins,
)
from randquant.moments import Moments, moments
from randquant.privacy import Guarantee, Interval
from randquant.releases import ChannelRelease, GaussianRelease, VectorRelease
from randquant.sampling import Sampled
from randquant.sums import SumCertificate, certify_sum
from randquant.sums.curvature import kappa_sum
from randquant.vector import kappa, squared_distance

__all__ = [
    "Audit",
    "Calibration",
    "Certificate",
    "Channel",
    "ChannelRelease",
    "GaussianRelease",
    "Guarantee",
    "Interval",
    "Key",
    "Moments",
    "OutOfReach",
    "Sampled",
    "SumCertificate",
    "VectorRelease",
    "account",
    "audit",
    "calibrate",
    "certify",
    "certify_metric",
    "certify_pair",
    "certify_sum",
    "decode",
    "design",  # pyright: ignore[reportUnsupportedDunderAll]
    "encode",
    "erm",
    "fisher_information",
    "imvu",
    "imvu_fisher",
    "kappa",
    "kappa_sum",
    "load_channel",
    "moments",
    "mvu",
    "optm",
    "pbm",
    "qmgeo",
    "register",
    "rqm",
    "save_channel",
    "squared_distance",
    "stochastic_rounding",
    "two_bins",
]


def __getattr__(name: str) -> Any:
    """Import `rq.design` when it is first used: its solver is slow to import."""
    if name == "design":
        return importlib.import_module("randquant.design")
    raise AttributeError(f"module 'randquant' has no attribute {name!r}")
