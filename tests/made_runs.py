"""Runs that nobody trained: their records, with the figures that a test chooses."""

from __future__ import annotations

import math
from pathlib import Path

import problems

from randquant.privacy import Guarantee, Trust
from randquant.training import RoundMetrics, RunRecord, RunSummary, TrainConfig
from randquant.training import RunStatus as Status


def promise(epsilon: float = 152345.6, trust: Trust = "local") -> Guarantee:
    """A guarantee of so much."""
    return Guarantee(epsilon, 1e-5, "replace_one", trust, math.inf, 48750)


def measured(at: int, accuracy: float | None = 0.9, **figures) -> RoundMetrics:
    """A round with these figures among ordinary ones."""
    ordinary = {"loss": 0.4, "train_loss": 0.5, "bytes_up": 100, "seconds_evaluate": 0.1}
    seconds = {"seconds_gradient": 0.1, "seconds_protect": 0.1}
    return RoundMetrics(round=at, accuracy=accuracy, **{**ordinary, **seconds, **figures})


def record(
    guarantee: Guarantee | None = None, *, rounds: int = 30, every: int = 1, **config
) -> RunRecord:
    """A run whose accuracy rises and whose loss falls, evaluated every so many rounds."""
    settings = {"dataset": "digits", "model": "softmax", "mechanism": "rqm"}
    settings["parameters"] = {"clip": 1.5, "margin": 1.5, "levels": 16, "keep": 0.42}
    settings |= {"rounds": max(rounds, 1), **config}
    metrics = [
        measured(at, 0.9 - 0.8 / at, loss=0.4 + 2 / at)
        if at % every == 0
        else measured(at, None, loss=None)
        for at in range(1, rounds + 1)
    ]
    summary = RunSummary(0.873, 0.41, 650, 365, 75, guarantee, rounds)
    return RunRecord(problems.config_of(**settings), metrics, summary)


def finished(
    folder: Path, config: TrainConfig, guarantee: Guarantee | None, *metrics: RoundMetrics
) -> Status:
    """A run that has ended, with the figures of its last round."""
    accuracy, loss, sent = metrics[-1].accuracy, metrics[-1].loss, metrics[-1].bytes_up
    rounds = len(metrics)
    summary = RunSummary(accuracy, loss, 650, sent, rounds, guarantee, rounds)
    return Status(folder, "finished", config, metrics, summary)
