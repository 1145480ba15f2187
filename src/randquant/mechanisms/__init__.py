"""The mechanisms of the papers, each a constructor from parameters to a Channel.

A mechanism joins every command, table and contract test by the record in its own file.
"""

from randquant.mechanisms.bins import erm, two_bins
from randquant.mechanisms.interpolated import imvu
from randquant.mechanisms.minimum_variance import mvu
from randquant.mechanisms.optimal_mechanism import optm
from randquant.mechanisms.poisson_binomial import pbm
from randquant.mechanisms.randomized_quantization import rqm, stochastic_rounding
from randquant.mechanisms.record import MechanismRecord
from randquant.mechanisms.registry import build, channel_mechanisms, register, unregister
from randquant.mechanisms.silent_codes import sparse_ternary
from randquant.mechanisms.truncated_geometric import qmgeo
from randquant.mechanisms.tuning import (
    CoordinateFamily,
    CoordinateTarget,
    UpdateFamily,
    UpdateSetting,
)

__all__ = [
    "CoordinateFamily",
    "CoordinateTarget",
    "MechanismRecord",
    "UpdateFamily",
    "UpdateSetting",
    "build",
    "channel_mechanisms",
    "erm",
    "imvu",
    "mvu",
    "optm",
    "pbm",
    "qmgeo",
    "register",
    "rqm",
    "sparse_ternary",
    "stochastic_rounding",
    "two_bins",
    "unregister",
]
