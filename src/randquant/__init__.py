"""randquant: private federated learning in a few random bits per coordinate.

The distribution that is certified is the distribution that is sampled, bit for bit, and every
privacy figure printed is a proven bound for the whole run.
"""

from typing import TYPE_CHECKING

from randquant._internal.imports import __version__, lazily
from randquant.reports import notebook  # noqa: F401 - it registers what notebooks show

if TYPE_CHECKING:
    from randquant.aggregation.auxiliary_numbers import Number
    from randquant.aggregation.channel_mechanisms import ChannelMechanism, VectorMechanism
    from randquant.aggregation.layout import StateLayout
    from randquant.aggregation.registry import load, save
    from randquant.audit.attack import Audit, audit
    from randquant.channels.channel import Channel, Moments, moments
    from randquant.channels.encoding import decode, encode
    from randquant.channels.keys import Key
    from randquant.local_training.client import example_update
    from randquant.local_training.curvature import local_steps
    from randquant.local_training.local import Local, Standardize
    from randquant.mechanisms import design
    from randquant.mechanisms.binomial_codes import imvu, pbm
    from randquant.mechanisms.from_design import mvu
    from randquant.mechanisms.random_rounding import qmgeo, rqm, stochastic_rounding
    from randquant.mechanisms.registry import register
    from randquant.mechanisms.two_bin_family import erm, optm, two_bins
    from randquant.planning.calibration import Calibration, OutOfReach, calibrate
    from randquant.planning.compare import Comparison
    from randquant.planning.compare import at_equal_epsilon as compare
    from randquant.planning.planner import plan
    from randquant.planning.plans import Plan, Privacy
    from randquant.privacy.accounting.accountant import account
    from randquant.privacy.accounting.ledger import GaussianSteps
    from randquant.privacy.accounting.releases import ChannelRelease, GaussianRelease, VectorRelease
    from randquant.privacy.accounting.sampling import Sampled
    from randquant.privacy.certificates.coordinate import (
        Certificate,
        certify,
        certify_metric,
        certify_pair,
        fisher_information,
        load_channel,
        save_channel,
    )
    from randquant.privacy.certificates.sum_certificate import SumCertificate, certify_sum
    from randquant.privacy.certificates.sum_curvature import kappa_sum
    from randquant.privacy.certificates.vector import kappa, squared_distance
    from randquant.privacy.guarantee import Guarantee, Interval
    from randquant.reports.notebook import plot, report
    from randquant.rounds.statement import certificate_file
    from randquant.statistics.counts import Counts, KaplanMeier, LogRank, Quantiles
    from randquant.statistics.moments import Covariance, LinearRegression, Mean
    from randquant.statistics.surveys import Survey, survey
    from randquant.statistics.table import SurveyMechanism, Table, statistics
    from randquant.training.config import Server
    from randquant.training.federated import Run, train

__all__ = [
    "Audit",
    "Calibration",
    "Certificate",
    "Channel",
    "ChannelMechanism",
    "ChannelRelease",
    "Comparison",
    "Counts",
    "Covariance",
    "GaussianRelease",
    "GaussianSteps",
    "Guarantee",
    "Interval",
    "KaplanMeier",
    "Key",
    "LinearRegression",
    "Local",
    "LogRank",
    "Mean",
    "Moments",
    "Number",
    "OutOfReach",
    "Plan",
    "Privacy",
    "Quantiles",
    "Run",
    "Sampled",
    "Server",
    "Standardize",
    "StateLayout",
    "SumCertificate",
    "Survey",
    "SurveyMechanism",
    "Table",
    "VectorMechanism",
    "VectorRelease",
    "__version__",
    "account",
    "audit",
    "calibrate",
    "certificate_file",
    "certify",
    "certify_metric",
    "certify_pair",
    "certify_sum",
    "compare",
    "decode",
    "design",
    "encode",
    "erm",
    "example_update",
    "fisher_information",
    "imvu",
    "kappa",
    "kappa_sum",
    "load",
    "load_channel",
    "local_steps",
    "moments",
    "mvu",
    "optm",
    "pbm",
    "plan",
    "plot",
    "qmgeo",
    "register",
    "report",
    "rqm",
    "save",
    "save_channel",
    "squared_distance",
    "statistics",
    "stochastic_rounding",
    "survey",
    "train",
    "two_bins",
]

lazily(__name__)
