"""What a release reveals: certificates of one release, the account of a whole run."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant._internal.formatting import round_down, round_up
    from randquant.privacy.accounting.accountant import (
        ORDERS,
        RESERVED_SHARE,
        account,
        account_at,
        gaussian_order,
        under_other_relation,
    )
    from randquant.privacy.accounting.composition import (
        LOSS_ERROR,
        Mixture,
        compose,
        compose_pairs,
        dominating_pair,
    )
    from randquant.privacy.accounting.gaussian import (
        MAX_NORMAL_DERIVATIVES,
        RoundLoss,
        epsilon_at,
        gaussian_epsilon,
        gaussian_noise,
        log_gaussian_delta,
        martingale_epsilon,
        step_square,
        sum_round_loss,
        unit_squared_mu,
    )
    from randquant.privacy.accounting.ledger import GaussianSteps, Ledger
    from randquant.privacy.accounting.privacy_loss import (
        PrivacyLoss,
        Tilted,
        best_tilt,
        by_fourier,
        by_normal,
        crossing,
        on_grid,
        powered,
    )
    from randquant.privacy.accounting.ratios import (
        MIN_PROB,
        RATIO_ORDERS,
        ChainLaw,
        Powers,
        ratio_moments,
        rounding,
        sums,
    )
    from randquant.privacy.accounting.release_protocol import Release, ReleaseDefaults
    from randquant.privacy.accounting.releases import (
        ChannelRelease,
        GaussianRelease,
        LaplaceRelease,
        NoiseRelease,
        VectorRelease,
    )
    from randquant.privacy.accounting.sampling import (
        DRAWS,
        HiddenCohorts,
        Sampled,
        amplified,
        run_release,
    )
    from randquant.privacy.certificates.coordinate import (
        certify,
        certify_pair,
        channel_record,
        load_channel,
        save_channel,
    )
    from randquant.privacy.certificates.sum_certificate import attained, by_distance, certify_sum
    from randquant.privacy.certificates.sum_curvature import MAX_SUM_CLIENTS, check_work, kappa_sum
    from randquant.privacy.certificates.sum_laws import (
        NO_TRIM_FLOOR_BITS,
        ClientRows,
        Law,
        Rows,
        log_trimmed,
        product,
    )
    from randquant.privacy.certificates.sum_parts import (
        SHARE_DENOMINATOR,
        block_covers,
        symmetric_rows,
    )
    from randquant.privacy.certificates.sum_tools import SCALE, Bits, LogBinomial
    from randquant.privacy.certificates.vector import (
        BoxSearch,
        CellLines,
        Kappa,
        kappa,
        log_curvature,
        squared_distance,
    )
    from randquant.privacy.divergence import UNIT, hockey_stick, log_ratio, renyi, shift_divergence
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
    "PrivacyLoss",
    "ReleaseDefaults",
    "renyi",
    "round_down",
    "round_up",
]

lazily(__name__)
