"""Mechanisms for whole updates: a client encodes its update, the server decodes the mean.

Training and deployment see only `UpdateMechanism`.
"""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant.aggregation.additive import (
        AdditiveMechanism,
        most_bits,
        round_within,
        squared_bound,
        squared_norm,
    )
    from randquant.aggregation.alongside import LEAST_WEIGHT, Alongside, Number
    from randquant.aggregation.baselines import CentralGaussian, ClippedSGD, LocalGaussian, gaussian
    from randquant.aggregation.clipping import add_clipped, clip_to_norm, scale_to_norm, shorten
    from randquant.aggregation.coordinate import ChannelMechanism, log_equal_codes
    from randquant.aggregation.defaults import MechanismDefaults
    from randquant.aggregation.error import CoordinateError
    from randquant.aggregation.hostile import one_client
    from randquant.aggregation.layout import StateLayout, as_vector, dimension_of, is_running
    from randquant.aggregation.mechanism import UpdateMechanism
    from randquant.aggregation.modulus import lifted, sum_bits, wrap_probability
    from randquant.aggregation.payloads import BY_CHANCE
    from randquant.aggregation.rank.designs import gain, graded, top_sum, two_levels
    from randquant.aggregation.rank.drawing import SORTED, draw_below, index_at, place_of, ranks_of
    from randquant.aggregation.rank.mechanism import RankMechanism, graded_rank
    from randquant.aggregation.rank.release import RankRelease
    from randquant.aggregation.rank.rotations import GroupRotation, spread_size
    from randquant.aggregation.rank.table import LARGEST_TOTAL, RankTable
    from randquant.aggregation.registry import all_mechanisms, update_mechanism
    from randquant.aggregation.rotation import Rotation
    from randquant.aggregation.saved import from_record, load, save
    from randquant.aggregation.sign_sgd import SignSGD
    from randquant.aggregation.subset import Projection, Subset
    from randquant.aggregation.vector import VectorMechanism
    from randquant.aggregation.walsh_hadamard import hadamard

__all__ = [
    "BY_CHANCE",
    "LARGEST_TOTAL",
    "LEAST_WEIGHT",
    "SORTED",
    "AdditiveMechanism",
    "Alongside",
    "CentralGaussian",
    "ChannelMechanism",
    "ClippedSGD",
    "CoordinateError",
    "GroupRotation",
    "LocalGaussian",
    "MechanismDefaults",
    "Number",
    "Projection",
    "RankMechanism",
    "RankRelease",
    "RankTable",
    "Rotation",
    "SignSGD",
    "StateLayout",
    "Subset",
    "UpdateMechanism",
    "VectorMechanism",
    "add_clipped",
    "all_mechanisms",
    "as_vector",
    "clip_to_norm",
    "dimension_of",
    "draw_below",
    "from_record",
    "gain",
    "gaussian",
    "graded",
    "graded_rank",
    "hadamard",
    "index_at",
    "is_running",
    "lifted",
    "load",
    "log_equal_codes",
    "most_bits",
    "one_client",
    "place_of",
    "ranks_of",
    "round_within",
    "save",
    "scale_to_norm",
    "shorten",
    "spread_size",
    "squared_bound",
    "squared_norm",
    "sum_bits",
    "top_sum",
    "two_levels",
    "update_mechanism",
    "wrap_probability",
]

lazily(__name__)
