"""A run's rounds as TensorBoard event files, in the folder of the log they are made from.

RUN/tensorboard/            the run
RUN/baseline/tensorboard/   the same run without privacy
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from randquant._internal.extras import needed
from randquant._internal.serialization import to_json
from randquant.training.config import TrainConfig
from randquant.training.data import features
from randquant.training.records import RoundMetrics
from randquant.training.runs import folder as run_folder

FOLDER = "tensorboard"


class TensorboardLog:
    """Writes the rounds of a run and of its baseline; use it in a `with` statement.

    Args:
        folder: of the run.

    Guarantees:
        Every round is in the event files once, however often the run was resumed: they are
        rewritten from `metrics.jsonl` each time.

    Raises:
        ImportError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[Path, Any] = {}
        _writer_class()  # raises before anything is trained

    def round(self, config: TrainConfig, metrics: RoundMetrics) -> None:
        """Add a round that is in the run's log already."""
        folder = self._folder
        if config != run_folder.read_config(folder):
            folder = folder / run_folder.BASELINE
        if folder in self._writers:
            _write(self._writers[folder], metrics)
        else:
            self._begin(folder, config, metrics.round)

    def __enter__(self) -> TensorboardLog:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._write_finished()
        for writer in self._writers.values():
            writer.close()

    def _begin(self, folder: Path, config: TrainConfig, rounds: int) -> None:
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        writer = self._writers[folder] = _writer_class()(str(folder / FOLDER))
        writer.add_text("config", f"```json\n{json.dumps(to_json(config), indent=2)}\n```")
        if fitted := features.statement(config):  # printed beside every epsilon
            writer.add_text("features", fitted)
        for metrics in run_folder.read_log(folder, config)[0].metrics[:rounds]:
            _write(writer, metrics)

    def _write_finished(self) -> None:
        """Also write runs that had no rounds left to do."""
        for folder in (self._folder, self._folder / run_folder.BASELINE):
            if folder not in self._writers and (folder / run_folder.SUMMARY).exists():
                config = run_folder.read_config(folder)
                self._begin(folder, config, config.rounds)


def _write(writer: Any, metrics: RoundMetrics) -> None:
    values = dataclasses.asdict(metrics)
    values |= {f"clients' {name}": value for name, value in (values.pop("numbers") or {}).items()}
    for name, value in values.items():
        if name in ("round", "delta", "neighboring", "mean") or value is None:
            continue
        if math.isfinite(value):
            if name == "epsilon":
                name, value = "epsilon so far", _above(value)
            writer.add_scalar(name, value, metrics.round)


def _above(value: float) -> float:
    """The least float32 that is not below: event files store float32 only."""
    nearest = np.float32(value)
    return float(
        nearest if float(nearest) >= value else np.nextafter(nearest, np.float32(math.inf))
    )


def _writer_class() -> Any:
    with needed("a TensorBoard log", "train", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter
