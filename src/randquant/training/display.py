"""What a round measured, as a few words beside a bar."""

from __future__ import annotations

import math
import warnings

from randquant._internal.rounding import round_up
from randquant.training.records import RoundMetrics, RunSummary


class Advice(UserWarning):
    """What the released means say about a run that has ended."""


def evaluated(metrics: RoundMetrics) -> str:
    """What a round measured on test data; empty if nothing."""
    if metrics.accuracy is not None:
        return f"accuracy {metrics.accuracy:.3f}"
    return "" if metrics.loss is None else f"loss {metrics.loss:.4g}"


def spent(metrics: RoundMetrics) -> str:
    """The bound of epsilon if the run were to end here as declared; empty without privacy."""
    if metrics.epsilon is None:
        return ""
    bound = round_up(metrics.epsilon, 4) if math.isfinite(metrics.epsilon) else "infinity"
    return f"epsilon so far <= {bound}"


def advise(summary: RunSummary) -> None:
    """Warn the caller of `train` of what the released means say about the run, if anything."""
    if summary.advice:
        warnings.warn(summary.advice, Advice, stacklevel=5)
