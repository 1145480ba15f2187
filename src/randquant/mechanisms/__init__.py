"""The mechanisms of the papers, each a constructor from parameters to a Channel.

A mechanism joins every command, table and contract test by the record in its own file.
"""

from randquant.mechanisms.imvu import imvu, imvu_fisher
from randquant.mechanisms.mvu import mvu
from randquant.mechanisms.optm import optm
from randquant.mechanisms.pbm import pbm
from randquant.mechanisms.qmgeo import qmgeo
from randquant.mechanisms.record import MechanismRecord
from randquant.mechanisms.registry import build, channel_mechanisms, register, unregister
from randquant.mechanisms.rqm import rqm, stochastic_rounding
from randquant.mechanisms.tuning import (
    CoordinateFamily,
    CoordinateTarget,
    UpdateFamily,
    UpdateSetting,
)
from randquant.mechanisms.two_bins import erm, two_bins

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
    "imvu_fisher",
    "mvu",
    "optm",
    "pbm",
    "qmgeo",
    "register",
    "rqm",
    "stochastic_rounding",
    "two_bins",
    "unregister",
]
