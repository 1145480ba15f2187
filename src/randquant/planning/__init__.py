"""Which mechanism to take: compare, plan, tune, limits."""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant.planning.calibration import calibrate
    from randquant.planning.choice import Calibrated, choose
    from randquant.planning.compare.curves import tradeoffs
    from randquant.planning.limits import gaussian_multiplier
    from randquant.planning.noise_search import EDGE, TOLERANCE, NoiseSearch, OutOfReach
    from randquant.planning.plan.record import (
        ENOUGH,
        Candidate,
        DecodedError,
        Limit,
        Need,
        Plan,
        built,
        code,
    )
    from randquant.planning.plan.subsets import FARTHEST, TOLERATED
    from randquant.planning.plan.verdict import LONG, USEFUL, judge
    from randquant.planning.privacy import Privacy
    from randquant.planning.tuning.families import Unreachable, tune_coordinate
    from randquant.planning.tuning.update import (
        FINE,
        TunedUpdate,
        fewest_bits,
        protecting_mechanisms,
        tune_update,
        tuned_mechanism,
        update_family,
    )

__all__ = [
    "EDGE",
    "ENOUGH",
    "FARTHEST",
    "FINE",
    "LONG",
    "TOLERANCE",
    "TOLERATED",
    "USEFUL",
    "Calibrated",
    "Candidate",
    "DecodedError",
    "Limit",
    "Need",
    "NoiseSearch",
    "OutOfReach",
    "Plan",
    "Privacy",
    "TunedUpdate",
    "Unreachable",
    "built",
    "calibrate",
    "choose",
    "code",
    "fewest_bits",
    "gaussian_multiplier",
    "judge",
    "protecting_mechanisms",
    "tradeoffs",
    "tune_coordinate",
    "tune_update",
    "tuned_mechanism",
    "update_family",
]

lazily(__name__)
