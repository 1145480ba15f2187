"""A comparison as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from randquant._internal import formatting, tables
from randquant._internal.rounding import round_up
from randquant.channels.wire.block_codes import bits_per_code
from randquant.mechanisms.registry import notes_on
from randquant.planning.compare.compare import Comparison


def as_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as the JSON object that the command prints."""
    mechanisms = []
    for entry in comparison.entries:
        record: dict[str, Any] = {
            "mechanism": entry.mechanism,
            "levels": entry.levels,
            "bits_per_coordinate": bits_per_code(entry.levels),
            "parameters": dict(entry.parameters),
            "remark": entry.remark,
        }
        if entry.measured is not None:
            measured = entry.measured
            record |= {
                "epsilon": measured.certificate.epsilon,
                "renyi": {"order": comparison.order, "epsilon": measured.renyi.epsilon},
                "witness": measured.certificate.witness,
                "bias_max": measured.moments.bias_max,
                "variance": measured.moments.variance,
                "mae": measured.moments.mae,
                "mse": measured.moments.mse,
                "fingerprint": measured.channel.fingerprint.hex(),
            }
        mechanisms.append(record)
    return {
        "target": comparison.target,
        "objective": comparison.objective,
        "order": comparison.order,
        "mechanisms": mechanisms,
        "left_out": list(comparison.left_out),
        "notes": _defaults(comparison),
        "tradeoff": [
            {
                "levels": levels,
                "mechanism": name,
                "points": [{"epsilon": e, "mse": m} for e, m in p],
            }
            for (levels, name), p in comparison.tradeoff.items()
        ],
    }


def rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The columns and the cells of a comparison's table."""
    columns = ["mechanism", "bits", "epsilon", f"order {comparison.order:g}", "bias", "variance"]
    columns += ["MAE", "MSE", "parameters"]
    cells = []
    for entry in comparison.entries:
        bits = str(bits_per_code(entry.levels))
        numbers, measured = ["-"] * 6, entry.measured
        if measured is not None:
            numbers = [
                _bound(measured.certificate.epsilon.upper),
                _bound(measured.renyi.epsilon.upper),
                round_up(measured.moments.bias_max, 2),
                *(f"{getattr(measured.moments, kind):.5g}" for kind in ("variance", "mae", "mse")),
            ]
        words = [_named(entry.parameters)] if entry.parameters else []
        words += [f"({entry.remark})"] if words and entry.remark else [entry.remark]
        cells.append([entry.mechanism, bits, *numbers, " ".join(words).strip()])
    return columns, cells


def as_text(comparison: Comparison) -> list[str]:
    """Lay a comparison out for a terminal."""
    return [caption(comparison), *tables.text(*rows(comparison)), *notes(comparison)]


def caption(comparison: Comparison) -> str:
    """One sentence on what the table shows."""
    if comparison.target is None:
        return (
            "One coordinate, one release; privacy in nats, exact errors, input uniform; bits of "
            "one code, not masked for a sum"
        )
    objective = (comparison.objective or "").upper()
    return (
        f"Certified epsilon at most {formatting.exact(comparison.target)}, least {objective} "
        "found; one coordinate, one release; input uniform; bits of one code, not masked for a sum"
    )


def notes(comparison: Comparison) -> list[str]:
    """Remarks below the table."""
    remarks = _defaults(comparison)
    if comparison.left_out:
        names = ", ".join(comparison.left_out)
        remarks.append(f"Not tuned, since it takes minutes: {names}; --mechanisms all adds it.")
    values = [v for entry in comparison.entries for v in entry.parameters.values()]
    if any(isinstance(value, list) and len(value) > 4 for value in values):
        remarks.append("Lists of more than four values are shortened; --json has them in full.")
    measured = [entry.measured for entry in comparison.entries if entry.measured is not None]
    if len({one.channel.clip for one in measured}) > 1:
        remarks.append("Clips differ: errors are in the units of each channel's input.")
    return remarks


def _defaults(comparison: Comparison) -> list[str]:
    """What mechanisms of the table chose by themselves, each sentence once."""
    return list(
        dict.fromkeys(
            note for e in comparison.entries for note in notes_on(e.mechanism, e.parameters)
        )
    )


def _named(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in parameters.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple | np.ndarray):
        cells = [f"{float(v):.4g}" for v in value]
        return ",".join(cells if len(cells) <= 4 else [*cells[:2], "…", cells[-1]])
    return str(value)


def _bound(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else round_up(epsilon, 6)
