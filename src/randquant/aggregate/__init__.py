"""Mechanisms for whole updates: what a client uploads, and what the server makes of the uploads.

Training and deployment see only `UpdateMechanism`.
"""

from randquant.aggregate.additive import AdditiveMechanism
from randquant.aggregate.channel import ChannelMechanism
from randquant.aggregate.gaussian import CentralGaussian, ClippedSGD, LocalGaussian, SignSGD
from randquant.aggregate.mechanism import MechanismDefaults, UpdateMechanism
from randquant.aggregate.registry import all_mechanisms, update_mechanism
from randquant.aggregate.saved import from_record, load, save
from randquant.aggregate.vector import VectorMechanism

__all__ = [
    "AdditiveMechanism",
    "CentralGaussian",
    "ChannelMechanism",
    "ClippedSGD",
    "LocalGaussian",
    "MechanismDefaults",
    "SignSGD",
    "UpdateMechanism",
    "VectorMechanism",
    "all_mechanisms",
    "from_record",
    "load",
    "save",
    "update_mechanism",
]
