"""Mechanisms for whole updates: a client encodes its update, the server decodes the mean.

Training and deployment see only `UpdateMechanism`.
"""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.aggregation.additive import (
        HELPER_NOISE,
        AdditiveMechanism,
        HelperNoise,
        most_bits,
        round_within,
        squared_bound,
        squared_norm,
    )
    from randquant.aggregation.auxiliary_numbers import MIN_MEAN_WEIGHT, AuxiliaryNumbers, Number
    from randquant.aggregation.baselines import (
        CentralGaussian,
        ClippedSGD,
        LocalGaussian,
        SignSGD,
        gaussian,
    )
    from randquant.aggregation.channel_mechanisms import (
        ChannelMechanism,
        VectorMechanism,
        lifted,
        log_equal_codes,
        sum_bits,
        wrap_probability,
    )
    from randquant.aggregation.clipping import ClippedSum, clip_to_norm, scale_to_norm, shorten
    from randquant.aggregation.layout import StateLayout, as_vector, is_running, update_dimension
    from randquant.aggregation.mechanism import (
        MAX_LOG_COLLISION,
        CoordinateError,
        MechanismDefaults,
        UpdateMechanism,
        describe_influence,
    )
    from randquant.aggregation.registry import (
        all_mechanisms,
        from_record,
        load,
        recorded_module,
        save,
        update_mechanism,
    )
    from randquant.aggregation.rotation import Projection, Rotation, Subset, hadamard

__all__ = [
    "AdditiveMechanism",
    "CentralGaussian",
    "ChannelMechanism",
    "ClippedSGD",
    "HelperNoise",
    "LocalGaussian",
    "MechanismDefaults",
    "SignSGD",
    "StateLayout",
    "UpdateMechanism",
    "VectorMechanism",
    "all_mechanisms",
    "from_record",
    "hadamard",
    "load",
    "save",
    "update_mechanism",
]

lazily(__name__)
