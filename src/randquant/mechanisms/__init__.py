"""The mechanisms of the papers, each a constructor from parameters to a Channel.

A mechanism joins every command, table and contract test by the record in its file.
"""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily
from randquant.mechanisms.binomial_codes import imvu, pbm
from randquant.mechanisms.from_design import mvu
from randquant.mechanisms.random_rounding import qmgeo, rqm, sparse_ternary, stochastic_rounding
from randquant.mechanisms.registry import (
    CoordinateFamily,
    CoordinateTarget,
    MechanismRecord,
    UpdateFamily,
    UpdateSetting,
    build,
    channel_mechanisms,
    register,
    unregister,
)
from randquant.mechanisms.two_bin_family import erm, optm, two_bins

if TYPE_CHECKING:
    from randquant.mechanisms.design import Fisher, Metric, Pure, Renyi, named_constraint, optimal
    from randquant.mechanisms.from_design import designed
    from randquant.mechanisms.noise import (
        BITS,
        NOISES,
        Binomial,
        CumulativeTable,
        DiscreteGaussian,
        DiscreteLaplace,
        Skellam,
    )
    from randquant.mechanisms.random_rounding import MIN_ACTIVE_CODES, MIN_COHORT
    from randquant.mechanisms.registry import add, records_in

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

lazily(__name__)
