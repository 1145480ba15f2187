"""Mechanisms for whole updates: a client encodes its update, the server decodes the mean.

Training and deployment see only `UpdateMechanism`.
"""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant.aggregation.additive import AdditiveMechanism
    from randquant.aggregation.baselines import CentralGaussian, ClippedSGD, LocalGaussian
    from randquant.aggregation.coordinate import ChannelMechanism
    from randquant.aggregation.defaults import MechanismDefaults
    from randquant.aggregation.layout import StateLayout
    from randquant.aggregation.mechanism import UpdateMechanism
    from randquant.aggregation.rank.mechanism import RankMechanism, graded_rank
    from randquant.aggregation.registry import all_mechanisms, update_mechanism
    from randquant.aggregation.saved import from_record, load, save
    from randquant.aggregation.sign_sgd import SignSGD
    from randquant.aggregation.vector import VectorMechanism

__all__ = [
    "AdditiveMechanism",
    "CentralGaussian",
    "ChannelMechanism",
    "ClippedSGD",
    "LocalGaussian",
    "MechanismDefaults",
    "RankMechanism",
    "SignSGD",
    "StateLayout",
    "UpdateMechanism",
    "VectorMechanism",
    "all_mechanisms",
    "from_record",
    "graded_rank",
    "load",
    "save",
    "update_mechanism",
]

lazily(__name__)
