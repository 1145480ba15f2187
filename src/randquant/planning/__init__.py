"""Which mechanism to take: compare, plan, tune, limits."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.planning.calibration import (
        EDGE_TOLERANCE,
        TOLERANCE,
        NoiseSearch,
        OutOfReach,
        calibrate,
    )
    from randquant.planning.compare import tradeoffs
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
        built,
        code,
        gaussian_multiplier,
        judge,
    )
    from randquant.planning.privacy import Privacy
    from randquant.planning.tuning import (
        MAX_BITS_ERROR_RATIO,
        TunedUpdate,
        Unreachable,
        fewest_bits,
        protecting_mechanisms,
        tune_coordinate,
        tune_update,
        tuned_mechanism,
        update_family,
    )

__all__ = [
    "TunedUpdate",
    "tune_update",
]

lazily(__name__)
