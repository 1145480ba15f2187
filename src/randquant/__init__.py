"""randquant: private federated learning in a few random bits per coordinate.

The distribution that is certified is the distribution that is sampled, bit for bit, and every
privacy figure printed is a proven bound for the whole run.
"""

from typing import TYPE_CHECKING

from randquant._internal.imports import __version__, lazily
from randquant.reports import notebook  # noqa: F401 - it registers what notebooks show

if TYPE_CHECKING:
    from randquant.aggregation.auxiliary_numbers import Number
    from randquant.aggregation.coordinate import ChannelMechanism
    from randquant.aggregation.layout import StateLayout
    from randquant.aggregation.registry import load, save
    from randquant.aggregation.vector import VectorMechanism
    from randquant.audit.pipeline import Audit, audit
    from randquant.channels.channel import Channel, Moments, moments
    from randquant.channels.encoding import decode, encode
    from randquant.channels.keys import Key
    from randquant.local_training.client import example_update
    from randquant.local_training.curvature import local_steps
    from randquant.local_training.local import Local, Standardize
    from randquant.mechanisms import design
    from randquant.mechanisms.bins import erm, two_bins
    from randquant.mechanisms.from_design import mvu
    from randquant.mechanisms.interpolated import imvu
    from randquant.mechanisms.optimal_mechanism import optm
    from randquant.mechanisms.poisson_binomial import pbm
    from randquant.mechanisms.randomized_quantization import rqm, stochastic_rounding
    from randquant.mechanisms.registry import register
    from randquant.mechanisms.truncated_geometric import qmgeo
    from randquant.planning.calibration import Calibration, OutOfReach, calibrate
    from randquant.planning.compare import Comparison
    from randquant.planning.compare import at_equal_epsilon as compare
    from randquant.planning.planner import plan
    from randquant.planning.plans import Plan
    from randquant.planning.privacy import Privacy
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
    from randquant.statistics.moments import Covariance, LinearRegression, Mean
    from randquant.statistics.queries import Counts, Quantiles
    from randquant.statistics.survey_mechanism import SurveyMechanism
    from randquant.statistics.surveys import Survey, survey
    from randquant.statistics.survival import KaplanMeier, LogRank
    from randquant.statistics.table import Table, statistics
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
