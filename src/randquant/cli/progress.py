"""A finished training run in the terminal: a short table, or one JSON object."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from randquant._internal.formatting import count, round_up
from randquant.aggregation.helper_noise import parties_notes
from randquant.privacy.accounting.accountant import other_relation_lines
from randquant.privacy.certificates.coordinate import Certificate, certify
from randquant.privacy.guarantee import MODEL_TERMS
from randquant.reports.run import run_facts
from randquant.training.config import TrainConfig, describe_upload
from randquant.training.records import RunRecord, RunSummary
from randquant.training.run_store import BASELINE, RunStore
from randquant.training.setup import stored_mechanism


def result(folder: Path, run: RunRecord, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return a finished run as the JSON object that `randquant train --json` prints.

    Args:
        folder: of the run.
        run: its record.
        notes: on what its mechanism has chosen by itself.
    """
    return {
        "run": str(folder),
        "report": str(folder / "report.html"),
        **run_facts(run, _baseline(folder)),
        "seconds": run.seconds,
        "notes": list(notes),
    }


def table(folder: Path, run: RunRecord, notes: Sequence[str] = ()) -> list[str]:
    """Return a finished run as the short table that ends `randquant train`; see `result`."""
    summary, config, baseline = run.summary, run.config, _baseline(folder)
    reference = None if baseline is None else baseline.accuracy
    comparison = "" if reference is None else f"   (without privacy {reference:.4f})"
    accuracy = "not measured" if summary.accuracy is None else f"{summary.accuracy:.4f}"
    balanced = (f"{name} {value:.4f}" for name, value in summary.figures_if_imbalanced.items())
    rows = [
        ("test accuracy", f"{', '.join([accuracy, *balanced])}{comparison}"),
        (
            "upload",
            f"{summary.bytes_per_upload:,} bytes a client and round "
            f"({summary.bits_per_coordinate:.2f} bits per coordinate{_sent_as(summary, config)})",
        ),
        ("guarantee", _guarantee(summary, config)),
    ]
    if summary.guarantee is not None:
        rows += [("", text) for text in other_relation_lines(summary.other_relation)]
        rows.append(("", _covered(summary, config)))
        rows += [("", note) for note in parties_notes(config.mechanism, config.parameters)]
        rows += [("", text) for text in _other_guarantee(summary)]
        rows += [("", note) for note in notes]
    if summary.stopped:
        rows.append(("stopped", summary.stopped))
    if summary.advice:
        rows.append(("advice", summary.advice))
    rows += [
        ("time", f"{run.seconds:.1f} s for {count(run.rounds, 'round')}"),
        ("report", str(folder / "report.html")),
    ]
    return [f"{name:<14} {text}" for name, text in rows]


def _guarantee(summary: RunSummary, config: TrainConfig) -> str:
    guarantee = summary.guarantee
    if guarantee is None or math.isinf(guarantee.epsilon):
        return "none: this run protects nothing"
    return f"whole run, one {guarantee.unit}: {guarantee}"


def _other_guarantee(summary: RunSummary) -> list[str]:
    other, stated = summary.beside, summary.guarantee
    # A guarantee under model trust holds only if nobody sees more than the models: print the terms.
    terms = [MODEL_TERMS] if stated is not None and stated.trust == "model" else []
    if other is None:
        return terms
    who = ", if it is seen who takes part" * bool(terms)
    stands = other_relation_lines(summary.beside_other_relation)
    return [*terms, f"the same run, one {other.unit}{who}: {other}", *stands]


def _covered(summary: RunSummary, config: TrainConfig) -> str:
    whole = (
        f"{describe_upload(config, summary.dimension)} x {count(summary.participations, 'round')} "
        "of the client with the most rounds"
    )
    # The figure of one coordinate is no guarantee of the run: it follows the run's, with its unit.
    certificate = _certificate(config)
    if certificate is None:
        return whole
    clipped = config.privacy.clip_norm
    if clipped is not None:  # a bound per coordinate could exceed that of the update
        return f"{whole}, updates clipped to an l2 norm of {clipped}"
    upper = certificate.epsilon.upper
    single = f"<= {round_up(upper)}" if math.isfinite(upper) else "is infinite too"
    return f"{whole}; per coordinate epsilon {single}"


def _sent_as(summary: RunSummary, config: TrainConfig) -> str:
    # Under model trust the server sums as for the run's other guarantee.
    guarantee, hidden = summary.beside or summary.guarantee, config.hidden_cohorts
    if guarantee is None or guarantee.trust != "aggregate":
        return ", header included"
    clients = config.cohort if hidden is None else hidden.summands("aggregate")
    plain = summary.bytes_as_codes
    unmasked = "" if plain is None else f"; {plain:,} bytes as plain codes"
    return f": masked for a sum of {clients:,}, header included, handshake not{unmasked}"


def _certificate(config: TrainConfig) -> Certificate | None:
    mechanism = stored_mechanism(config)
    channel = None if mechanism is None else mechanism.channel
    return None if channel is None else certify(channel, math.inf)


def _baseline(folder: Path) -> RunSummary | None:
    baseline = RunStore(folder / BASELINE)
    return baseline.read().summary if baseline.exists() else None
