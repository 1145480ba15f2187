"""Which mechanism to take: compare, plan, tune, limits."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.planning.calibration import (
        EDGE_TOLERANCE,
        MAX_BITS_ERROR_RATIO,
        TOLERANCE,
        NoiseSearch,
        OutOfReach,
        TunedUpdate,
        calibrate,
        fewest_bits,
        protecting_mechanisms,
        tune_update,
        tuned_mechanism,
        update_family,
    )
    from randquant.planning.compare import Unreachable, tradeoffs, tune_coordinate
    from randquant.planning.planner import MAX_ERROR_RATIO, TOLERATED, Calibrated, choose
    from randquant.planning.plans import (
        LONG_NOISE_SHARE,
        ONE_BIT_ERROR_RATIO,
        USEFUL_SHARE,
        Candidate,
        DecodedError,
        Limit,
        Need,
        Plan,
        Privacy,
        built,
        code,
        gaussian_multiplier,
        judge,
    )

__all__ = [
    "TunedUpdate",
    "tune_update",
]

lazily(__name__)
