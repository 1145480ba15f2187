"""The folder of a run: who holds it, and what its files say, checked when they are read."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import safetensors.numpy

from randquant import features, locks
from randquant.records import (
    RoundMetrics,
    RunSummary,
    TrainConfig,
    check_config,
    from_json,
    to_json,
    write_atomic,
)
from randquant.report import Run

if TYPE_CHECKING:
    from randquant.federate import State

FREE = ("rounds", "delta", "neighboring", "stop_at_epsilon", "checkpoint_every", "evaluate_every")
"""Settings that may change while a run goes on: how long to train and what to print."""

LATER = {
    "trust": "",
    "clip_norm": None,
    "norm": "l2",
    "max_participations": None,
    "sampling": "fixed",
    "batch": None,
    "local_epochs": 1,
    "local_learning_rate": None,
    "server_optimizer": "sgd",
    "server_momentum": 0.0,
    "features": "",
    "fitted_on": "all",
    "unit": "client",
    "device": "cpu",
}
"""Settings that checkpoints are older than, and what the older ones were made with."""


def make_way(folder: Path, overwrite: bool) -> None:
    """Delete the run in a folder that is not empty, if that was asked for and is a run."""
    if not (folder / "config.json").exists():
        raise FileExistsError(
            f"Expected a new folder for the run, got {folder}, which holds other files: "
            "choose another."
        )
    if not overwrite:
        raise FileExistsError(
            f"Expected a new folder for the run, got {folder}, which holds a run: choose "
            "another, add --overwrite to replace it, or --resume to go on with it."
        )
    with locks.folder(folder):
        shutil.rmtree(folder)


def read_config(folder: Path) -> TrainConfig:
    """Return the configuration of the run in a folder."""
    try:
        text = (folder / "config.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"Expected a run in {folder}, found no config.json there.") from None
    try:
        config = from_json(TrainConfig, json.loads(text))
        check_config(config)
        return config
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"Expected a valid {folder / 'config.json'}: {error}") from None


def metrics_line(metrics: RoundMetrics) -> bytes:
    """Return one round's metrics as a line of the log."""
    return json.dumps(to_json(metrics), allow_nan=False).encode() + b"\n"


def read_metrics(path: Path, rounds: int) -> list[RoundMetrics]:
    """The metrics of rounds 1 to `rounds`; what a killed run wrote beyond them is dropped."""
    if rounds == 0:
        return []
    lines = path.read_bytes().splitlines()[:rounds] if path.exists() else []
    try:
        metrics = [from_json(RoundMetrics, json.loads(line)) for line in lines]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected one JSON record per line of {path}: {error}") from None
    if [m.round for m in metrics] != list(range(1, rounds + 1)):
        raise ValueError(f"Expected rounds 1 to {rounds} in {path}: lines are missing or doubled.")
    return metrics


def read_finished(folder: Path) -> Run:
    """Return the finished run in a folder, as it ended.

    Raises:
        ValueError: the folder holds no run, its files are damaged, or it is not finished.
    """
    config = read_config(folder)
    path = folder / "summary.json"
    if not path.exists():
        raise ValueError(
            f"Expected a finished run in {folder}, got one without a summary: go on with it by "
            "randquant train --resume."
        )
    try:
        summary = from_json(RunSummary, json.loads(path.read_bytes()))
    except ValueError as error:
        raise ValueError(f"Expected a valid {path}: {error}") from None
    rounds = config.rounds if summary.rounds is None else summary.rounds
    return Run(config, read_metrics(folder / "metrics.jsonl", rounds), summary)


def identity(config: TrainConfig, fingerprint: bytes) -> np.ndarray:
    """What a checkpoint was made with, (32,) uint8: equal exactly when a run may go on from it.

    The guarantee speaks of every round, so they must all have used one configuration and one
    channel, whose fingerprint is given. With a cap on participations cohorts depend on how many
    rounds there are.
    """
    fields = to_json(config)
    for name in FREE:
        if name != "rounds" or config.max_participations is None:
            del fields[name]
    if not features.is_fitted(config):
        del fields["fitted_on"]  # nothing depends on it
    for name, before in LATER.items():
        if name in fields and fields[name] == before:
            del fields[name]
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    digest.update(fingerprint)
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def save_checkpoint(path: Path, state: State, made_with: np.ndarray) -> None:
    """Write where a run stands, atomically."""
    tensors = {
        "parameters": state.parameters,
        "participations": state.participations,
        "round": np.array([state.round], dtype=np.int64),
        "identity": made_with,
        **{f"moment {index}": moment for index, moment in enumerate(state.moments)},
    }
    tensors["checksum"] = _checksum(tensors)
    write_atomic(path, safetensors.numpy.save(tensors))


def load_checkpoint(path: Path, made_with: np.ndarray) -> State | None:
    """Return where a run stood; None where it has not begun."""
    from randquant.federate import State  # torch: slow, and reading a run's figures needs none

    if not path.exists():
        return None
    try:
        tensors = safetensors.numpy.load(path.read_bytes())
        checksum = tensors.pop("checksum")
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"Expected a checkpoint in {path}, got a damaged file: {error}") from None
    if not np.array_equal(checksum, _checksum(tensors)):
        raise ValueError(f"Expected a checkpoint in {path} whose checksum fits: it is damaged.")
    if not np.array_equal(tensors["identity"], made_with):
        raise ValueError(
            f"Expected the configuration that {path} was made with, got another: its rounds "
            "would not have the guarantee that is printed. Restore config.json or begin a new run."
        )
    moments = [name for name in tensors if name.startswith("moment ")]
    return State(
        int(tensors["round"][0]),
        tensors["parameters"],
        tensors["participations"],
        tuple(tensors[name] for name in sorted(moments)),
    )


def _checksum(tensors: dict[str, np.ndarray]) -> np.ndarray:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return np.frombuffer(digest.digest(), dtype=np.uint8)
