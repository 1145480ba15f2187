"""The folder of a run: its lock and its files, which are checked when they are read.

    RUN/config.json             what determines the run
    RUN/problem.json            digests of the model, the loss and the data that it began with
    RUN/initial.safetensors     its first weights, if the model was passed as an object
    RUN/key                     its secret key, if it has no simulation seed
    RUN/sent.json               rounds that were declared and sent, including the current one
    RUN/standardization.json    the figures it standardises by, if it asked for them
    RUN/metrics.jsonl           one line per finished round
    RUN/checkpoint.safetensors  the model and who took part, every few rounds
    RUN/summary.json            the results, when the run is finished
    RUN/report.html             the results as a page
    RUN/lock                    held by the process that trains it
    RUN/baseline/               the same run without privacy, if one was asked for

A round is in `sent.json` before it is sent, and in the log before a checkpoint includes it. Every
file except the page has a checksum, and is bound to its run by the digest of the settings and the
channel that the run began with, which are in `sent.json`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from randquant._internal import files, serialization
from randquant._internal.files import make_folder
from randquant._internal.serialization import from_json, sync_folder, to_json
from randquant.training.config import NAMES, TrainConfig, check_config, value_of
from randquant.training.records import RunRecord, RunSummary, SentRounds
from randquant.training.runs import log as run_log
from randquant.training.runs.log import RESTORE, Lines, RunLog

CONFIG, SENT, LOG = "config.json", "sent.json", "metrics.jsonl"
CHECKPOINT, SUMMARY, REPORT = "checkpoint.safetensors", "summary.json", "report.html"
INITIAL = "initial.safetensors"
BASELINE, BINDING, SECRET = "baseline", "problem.json", "key"
FIGURES = "standardization.json"

_FIRST = {SECRET, BINDING, INITIAL, LOG, SENT, CONFIG, BASELINE, "lock"}
"""What is written before a run's configuration, which comes last."""

FREE = ("rounds", "delta", "neighboring", "stop_at_epsilon", "checkpoint_every", "evaluate_every")
"""Settings that may change when a run is resumed: how soon to end, and what to print. What that
may not be is in `Schedule.check`."""

OPTIONS = ", ".join("--" + name.replace("_", "-") for name in FREE)


def make_way(folder: Path, overwrite: bool) -> None:
    """Delete the run in a folder if `overwrite` is set; refuse a folder with other files.

    What is left of a run whose first files were not all written is deleted: it sent nothing.
    """
    if not (folder / CONFIG).exists() and _unborn(folder):
        files.remove(folder)
        return
    if not (folder / CONFIG).exists():
        raise FileExistsError(
            f"Expected a new folder for the run, got {folder}, which holds other files: "
            "choose another."
        )
    if not overwrite:
        raise FileExistsError(
            f"Expected a new folder for the run, got {folder}, which holds a run: choose "
            "another, add --overwrite to replace it, or --resume to continue it."
        )
    files.remove(folder)


def _unborn(folder: Path) -> bool:
    """Whether a folder holds nothing but the first files of a run that has not sent anything."""
    names = {path.name.removesuffix(".partial") for path in folder.iterdir()}
    sent = has_sent(folder) if (folder / SENT).exists() else False  # it comes before all others
    return names <= _FIRST and (SECRET in names or SENT in names) and sent is False


def begin(
    folder: Path,
    config: TrainConfig,
    declared: tuple[int, int],
    fingerprint: str = "",
    epsilon: float | None = None,
    commitment: str = "",
) -> None:
    """Write the first files of a run, which bind it to its settings before its first round.

    The configuration is written last, by `write_config`: a folder with one is a complete new run.

    Args:
        folder: the run's folder; created if missing.
        config: the run's configuration.
        declared: rounds it is to have, and how many of them its client called most often has.
        fingerprint: of its mechanism, in hexadecimal; empty if it has none.
        epsilon: of that client; None without privacy.
        commitment: to its secret key; empty if it has a simulation seed.
    """
    make_folder(folder)
    write_sent(  # first: by it `make_way` knows what is left of a run
        folder,
        SentRounds(
            settings(config), fingerprint, 0, *declared, epsilon, config.delta,
            config.privacy.neighboring, commitment,
        ),
    )  # fmt: skip
    run_log.begin(folder / LOG)


def has_sent(folder: Path) -> bool | None:
    """Return whether the run in a folder has begun to ask or send; None if no record says."""
    try:
        return _sent(folder).begun
    except (ValueError, OSError):
        return None


def read_config(folder: Path) -> TrainConfig:
    """Return the configuration of the run in a folder.

    Raises:
        ValueError: there is none, or it was changed from outside.
    """
    advice = (
        f"Restore it: settings that may change ({OPTIONS}) are options of randquant train "
        "--resume RUN; for anything else begin a new run."
    )
    try:
        record = serialization.read(folder / CONFIG, advice)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"Expected a run in {folder}, found no {CONFIG} there.") from None
    try:
        config = TrainConfig.from_json(record)
        check_config(config)
        return config
    except (ValueError, TypeError) as error:
        raise ValueError(f"Expected a valid {folder / CONFIG}: {error}") from None


def write_config(folder: Path, config: TrainConfig) -> None:
    """Write the configuration of a run."""
    serialization.write(folder / CONFIG, config)


def read_sent(folder: Path, config: TrainConfig) -> SentRounds:
    """Return what the run in a folder has sent.

    Raises:
        ValueError: it is missing or was changed, or the run began with other settings.
    """
    sent = _sent(folder)
    if sent.settings != settings(config):
        raise ValueError(
            f"Expected the configuration that the run in {folder} began with, got another: its "
            f"rounds would not have the guarantee that is printed. Restore {CONFIG} or begin a "
            "new run."
        )
    return sent


def write_sent(folder: Path, sent: SentRounds) -> None:
    """Write what a run has sent; called before it is sent."""
    serialization.write(folder / SENT, sent)


def read_log(folder: Path, config: TrainConfig) -> tuple[Lines, SentRounds]:
    """Return a run's log and what was sent, even while the run is being trained.

    Raises:
        ValueError: a file was changed, or lines are missing.
    """
    before = read_sent(folder, config)
    lines = run_log.read(folder / LOG, before.identity)
    after = read_sent(folder, config)
    _check_length(folder, len(lines.metrics), before.round, after.round)
    return lines, after


def open_log(folder: Path, sent: SentRounds) -> RunLog:
    """Return the log of a run, to append to; ValueError if it is damaged."""
    log = RunLog(folder / LOG, sent.identity)
    _check_length(folder, len(log.metrics), sent.round, sent.round)
    return log


def read_summary(folder: Path, lines: Lines, sent: SentRounds) -> RunSummary | None:
    """Return the summary of a run with that log; None if it is not finished.

    Raises:
        ValueError: it was changed, or does not cover the rounds that were sent.
    """
    try:
        record = serialization.read(folder / SUMMARY, _ANEW.format(folder), lines.last)
    except FileNotFoundError:
        return None
    if len(lines.metrics) != sent.round:
        raise ValueError(
            f"Expected {folder / SUMMARY} to cover all {sent.round} rounds that were sent, got "
            f"{len(lines.metrics)}. {_ANEW.format(folder)}"
        )
    return RunSummary.from_json(record)


def write_summary(folder: Path, summary: RunSummary, last: str) -> None:
    """Write the summary of a run whose log ends with the checksum `last`."""
    serialization.write(folder / SUMMARY, summary, last)


def reopen(folder: Path) -> None:
    """Delete the results of a run before it continues: they do not cover later rounds."""
    results = [folder / name for name in (SUMMARY, REPORT) if (folder / name).exists()]
    for path in results:
        path.unlink()
    if results:
        sync_folder(folder)


def read_finished(folder: Path) -> RunRecord:
    """Return the finished run in a folder.

    Raises:
        ValueError: the folder holds no run, its files are damaged, or it is not finished.
    """
    config = read_config(folder)
    lines, sent = read_log(folder, config)
    summary = read_summary(folder, lines, sent)
    if summary is None or not is_stated(summary, config):
        raise ValueError(
            f"Expected a finished run in {folder}, got one without a summary: continue it with "
            "randquant train --resume."
        )
    return RunRecord(config, lines.metrics, summary)


def is_stated(summary: RunSummary, config: TrainConfig) -> bool:
    """Return whether a summary's guarantee is at the delta and for the neighbours of a run."""
    stated = summary.guarantee
    wanted = (config.delta, config.privacy.neighboring)
    return stated is None or (stated.delta, stated.neighboring) == wanted


def settings(config: TrainConfig) -> str:
    """Digest of the settings that must not change during a run, in hexadecimal (SHA-256).

    The guarantee covers every round, so all rounds must use one configuration. With a cap on
    participations cohorts depend on the number of rounds.
    """
    fields = to_json({name: value_of(config, name) for name in NAMES})
    fixed = () if config.privacy.max_participations is None else ("rounds",)
    if config.local.standardize is not None:  # it has a share of them
        fixed += ("delta", "stop_at_epsilon")
    for name in set(FREE) - set(fixed):
        del fields[name]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


_ANEW = "Write it again: randquant train --resume {}."


def _sent(folder: Path) -> SentRounds:
    try:
        return from_json(SentRounds, serialization.read(folder / SENT, RESTORE))
    except FileNotFoundError:
        raise ValueError(
            f"Expected {folder / SENT}, the record of what was sent, found none. {RESTORE}"
        ) from None


def _check_length(folder: Path, lines: int, low: int, high: int) -> None:
    """Check that a log has all rounds that were sent, except perhaps the last, interrupted one."""
    if not low - 1 <= lines <= high:
        raise ValueError(
            f"Expected {max(low - 1, 0)} to {high} rounds in {folder / LOG}, since {high} were "
            f"sent, got {lines}: lines are missing or doubled. {RESTORE}"
        )
