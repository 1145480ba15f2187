"""What a release reveals: certificates of one release, the account of a whole run."""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant._internal.rounding import round_down, round_up
    from randquant.privacy.accounting.accountant import (
        ORDERS,
        RESERVE,
        account,
        account_at,
        gaussian_order,
    )
    from randquant.privacy.accounting.amplification import amplified
    from randquant.privacy.accounting.attacks import (
        INSIDE,
        DrawnRound,
        attacked_epsilon,
        on_updates,
    )
    from randquant.privacy.accounting.bell import bell_square
    from randquant.privacy.accounting.chain import LOST, Powers, rounding, sums
    from randquant.privacy.accounting.cohorts import HiddenCohorts, release_of
    from randquant.privacy.accounting.composition.envelope import (
        SLIP,
        dominating_pair,
        strongest_pair,
    )
    from randquant.privacy.accounting.composition.fourier import by_fourier, on_grid, powered
    from randquant.privacy.accounting.composition.loss import (
        PrivacyLoss,
        Tilted,
        best_tilt,
        crossing,
    )
    from randquant.privacy.accounting.composition.mixture import Mixture
    from randquant.privacy.accounting.composition.normal import by_normal
    from randquant.privacy.accounting.composition.rule import compose, compose_worlds
    from randquant.privacy.accounting.gaussian import (
        gaussian_epsilon,
        gaussian_epsilon_below,
        gaussian_noise,
        log_gaussian_delta,
        step_square,
    )
    from randquant.privacy.accounting.hidden import DRAWS
    from randquant.privacy.accounting.integer_noise import NoiseRelease
    from randquant.privacy.accounting.laplace import LaplaceRelease
    from randquant.privacy.accounting.ledger import Ledger
    from randquant.privacy.accounting.martingale import (
        PEAKS,
        Steps,
        epsilon_at,
        martingale_epsilon,
        steps_of_sums,
    )
    from randquant.privacy.accounting.ratios import LADDER, ratio_moments
    from randquant.privacy.accounting.release import Release, ReleaseDefaults
    from randquant.privacy.accounting.releases import ChannelRelease, GaussianRelease, VectorRelease
    from randquant.privacy.accounting.rounds import IntegerRound, NormalRound, SumRound, places_of
    from randquant.privacy.accounting.sampled import Sampled
    from randquant.privacy.certificates.coordinate import certify, certify_pair
    from randquant.privacy.certificates.curvature import CellLines, log_curvature
    from randquant.privacy.certificates.file import channel_record, load_channel, save_channel
    from randquant.privacy.certificates.noise import shift_divergence
    from randquant.privacy.certificates.sums.attacks import attained, by_distance
    from randquant.privacy.certificates.sums.binomial import LogBinomial
    from randquant.privacy.certificates.sums.bits import SCALE, Bits
    from randquant.privacy.certificates.sums.blocks import SHARES, covers_of, even_rows
    from randquant.privacy.certificates.sums.certificate import certify_sum
    from randquant.privacy.certificates.sums.law import KEEP_ALL, Law, log_trimmed, product
    from randquant.privacy.certificates.sums.outcomes import ClientRows, Rows
    from randquant.privacy.certificates.sums.sum_curvature import LARGEST_SUM, kappa_sum
    from randquant.privacy.certificates.vector import BoxSearch, Kappa, kappa, squared_distance
    from randquant.privacy.certificates.work import check_work
    from randquant.privacy.divergence import UNIT, hockey_stick, log_ratio, renyi
    from randquant.privacy.guarantee import (
        MODEL_TERMS,
        NEIGHBORINGS,
        SIMULATED,
        Guarantee,
        Interval,
        Neighboring,
        Trust,
        at_most,
        rounded_up,
    )

__all__ = [
    "DRAWS",
    "INSIDE",
    "KEEP_ALL",
    "LADDER",
    "LARGEST_SUM",
    "LOST",
    "MODEL_TERMS",
    "NEIGHBORINGS",
    "ORDERS",
    "PEAKS",
    "RESERVE",
    "SCALE",
    "SHARES",
    "SIMULATED",
    "SLIP",
    "UNIT",
    "Bits",
    "BoxSearch",
    "CellLines",
    "ChannelRelease",
    "ClientRows",
    "DrawnRound",
    "GaussianRelease",
    "Guarantee",
    "HiddenCohorts",
    "IntegerRound",
    "Interval",
    "Kappa",
    "LaplaceRelease",
    "Law",
    "Ledger",
    "LogBinomial",
    "Mixture",
    "Neighboring",
    "NoiseRelease",
    "NormalRound",
    "Powers",
    "PrivacyLoss",
    "Release",
    "ReleaseDefaults",
    "Rows",
    "Sampled",
    "Steps",
    "SumRound",
    "Tilted",
    "Trust",
    "VectorRelease",
    "account",
    "account_at",
    "amplified",
    "at_most",
    "attacked_epsilon",
    "attained",
    "bell_square",
    "best_tilt",
    "by_distance",
    "by_fourier",
    "by_normal",
    "certify",
    "certify_pair",
    "certify_sum",
    "channel_record",
    "check_work",
    "compose",
    "compose_worlds",
    "covers_of",
    "crossing",
    "dominating_pair",
    "epsilon_at",
    "even_rows",
    "gaussian_epsilon",
    "gaussian_epsilon_below",
    "gaussian_noise",
    "gaussian_order",
    "hockey_stick",
    "kappa",
    "kappa_sum",
    "load_channel",
    "log_curvature",
    "log_gaussian_delta",
    "log_ratio",
    "log_trimmed",
    "martingale_epsilon",
    "on_grid",
    "on_updates",
    "places_of",
    "powered",
    "product",
    "ratio_moments",
    "release_of",
    "renyi",
    "round_down",
    "round_up",
    "rounded_up",
    "rounding",
    "save_channel",
    "shift_divergence",
    "squared_distance",
    "step_square",
    "steps_of_sums",
    "strongest_pair",
    "sums",
]

lazily(__name__)
