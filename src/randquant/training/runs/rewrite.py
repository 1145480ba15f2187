"""The page of one run, from the files in its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.coordinate import certify
from randquant.training import records
from randquant.training.runs import folder as run_folder
from randquant.training.runs import page
from randquant.training.runs.setup import channel_of


def rebuild(folder: Path, output: Path | None = None) -> Path:
    """Write a finished run's page again, without training; return its path.

    Raises:
        ValueError: the folder holds no finished run, or its files are damaged.
    """
    baseline = folder / run_folder.BASELINE
    path = output or folder / run_folder.REPORT
    both = run_folder.read_finished(baseline) if (baseline / run_folder.SUMMARY).exists() else None
    write(path, run_folder.read_finished(folder), both)
    return path


def write(path: Path, run: records.RunRecord, baseline: records.RunRecord | None) -> None:
    """Write the page of a finished run, with its baseline without privacy if there is one."""
    channel = channel_of(run.config)
    curve, output = (None, None) if channel is None else (_curve(channel), _output(channel))
    page.write(path, run, baseline, curve, output)


def _curve(channel: Channel) -> page.EpsilonCurve:
    orders = [float(1 + step) for step in np.geomspace(0.01, 1000, 61)]
    epsilon = [certify(channel, order).epsilon.upper for order in orders]
    return page.EpsilonCurve(orders, epsilon, certify(channel).epsilon.upper)


def _output(channel: Channel) -> page.CodeShares:
    inputs = {"x = -clip": -channel.clip, "x = 0": 0.0, "x = clip": channel.clip}
    rows = {}
    for label, x in inputs.items():
        weights, total = channel.mix(x)
        rows[label] = [float(weight / total) for weight in weights]
    return page.CodeShares([float(value) for value in channel.values], rows)
