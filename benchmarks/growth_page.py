"""docs/growth.md and its pictures, from results/growth.json: python benchmarks/growth_page.py"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from performance_page import ROOT, picture, result

from randquant.channels import wire
from randquant.reports import Axis, Figure, line_chart

WORDS = {
    "encode": "encode (a client)",
    "add": "sum of visible codes",
    "helper_server": "sum with a helper: server",
    "helper": "sum with a helper: helper",
    "among_clients": "sum among clients: server",
    "prove": "prove (a client)",
    "verify": "verify proofs: server",
    "plan": "plan",
    "account": "account",
    "train": "train, in process",
    "population": "train, 100 clients a round",
}
AXES = {"seconds": ("clients", "coordinates", "rounds"), "mb": ("clients", "coordinates")}
"""What the page shows of each cost."""
COLOURS = {name: f"c{1 + k % 8}{' dashed' * (k >= 8)}" for k, name in enumerate(WORDS)}

MEMORY_FLOOR = 4.0
"""Megabytes below which memory is that of small buffers, and has no exponent."""

TARGET = {"clients": 10**6, "coordinates": 10**7}
LIMITS = {"hours": 1.0, "gigabytes": 16.0}
"""What a round may take of one core and of a process's memory."""

LINK, DISK = 4.5, 1.0
"""Terabytes that pass 10 Gbit/s in an hour, and that a server keeps for a round."""

Rows = list[dict[str, Any]]


def exponent(rows: Rows, axis: str, cost: str, floor: float = 0.0) -> float | None:
    """Return the slope of log(cost) over log(size), by least squares through the last three points.

    Returns:
        None if none of them costs more than the floor.

    Example:
        >>> exponent([{"n": n, "s": 3 * n**2} for n in (1, 10, 100, 1000)], "n", "s")
        2.0
    """
    last = [(row[axis], row[cost]) for row in rows[-3:]]
    if max(value for _, value in last) <= floor:
        return None
    sizes, costs = np.log([[size, max(value, 1e-9)] for size, value in last]).T
    centred = sizes - sizes.mean()
    return round(float(centred @ costs / (centred @ centred)), 6)


def extended(rows: Rows, axis: str, cost: str, floor: float = 0.0) -> float:
    """Return the cost at TARGET of one curve, from its last point by its exponent, at least by 1.

    An exponent below 1 is that of points in which fixed costs are seen, which large sizes hide.
    """
    slope, last = exponent(rows, axis, cost, floor), rows[-1]
    if slope is None:
        return last[cost]
    return last[cost] * (TARGET[axis] / last[axis]) ** max(1.0, slope)


def grown(curves: dict[str, Rows], cost: str, floor: float = 0.0) -> float:
    """Return the cost at TARGET: along coordinates, times the growth along clients."""
    rows = curves["coordinates"]
    total = extended(rows, "coordinates", cost, floor)
    if "clients" in curves and exponent(curves["clients"], "clients", cost, floor) is not None:
        each = curves["clients"]
        shared = min(each, key=lambda row: abs(row["clients"] - rows[-1]["clients"]))
        total *= max(1.0, extended(each, "clients", cost, floor) / max(shared[cost], 1e-9))
    return total


class Need(NamedTuple):
    """What a part takes at TARGET, as a share of what it may."""

    part: str
    words: str
    over: float


def needs(curves: dict[str, dict[str, Rows]]) -> list[Need]:
    """Return what each part needs of time, memory, disk and network, the worst first."""
    found = []
    for part in ("encode", "prove", "add", "helper_server", "helper", "among_clients", "verify"):
        hours = grown(curves[part], "seconds") / 3600
        gigabytes = grown(curves[part], "mb", MEMORY_FLOOR) / 1000
        time = f"{hours:,.1f} hours" if hours >= 1 else f"{3600 * hours:,.0f} s"
        found.append(Need(part, f"{time} of one core", hours / LIMITS["hours"]))
        found.append(Need(part, f"{gigabytes:,.1f} GB of memory", gigabytes / LIMITS["gigabytes"]))
    kept = masked_terabytes()
    found.append(Need("helper_server", f"{kept:,.0f} TB of masked vectors on disk", kept / DISK))
    found.append(Need("helper_server", f"{kept:,.0f} TB received", kept / LINK))
    return sorted(found, key=lambda need: -need.over)


def masked_terabytes() -> float:
    bits = wire.sum_bits(2, TARGET["clients"])
    return TARGET["clients"] * wire.masked(TARGET["coordinates"], bits) / 1e12


def pictures(curves: dict[str, dict[str, Rows]]) -> dict[str, str]:
    """Each file in docs/images and what is in it."""
    drawn = {}
    for cost, unit in (("seconds", "seconds of one core"), ("mb", "megabytes more than before")):
        for axis in AXES[cost]:
            drawn[f"growth-{cost}-{axis}.svg"] = picture(_figure(curves, cost, unit, axis))
    return drawn


def _figure(curves: dict[str, dict[str, Rows]], cost: str, unit: str, axis: str) -> Figure:
    floor = MEMORY_FLOOR / 10 if cost == "mb" else 0.0
    lines = [
        (WORDS[part], [(row[axis], row[cost]) for row in axes[axis] if row[cost] > floor],
         COLOURS[part])
        for part, axes in curves.items() if axis in axes
    ]  # fmt: skip
    lines = [line for line in lines if len(line[1]) > 1]
    title = f"{'Time' if cost == 'seconds' else 'Memory'} against {axis}"
    return line_chart(title, lines, Axis(axis, log=True), Axis(unit, log=True))


def table(curves: dict[str, dict[str, Rows]]) -> str:
    head = [*AXES["seconds"], *(f"memory, {axis}" for axis in AXES["mb"])]
    lines = [f"| | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for part, axes in curves.items():
        cells = [_cell(axes, axis, "seconds", 0.0) for axis in AXES["seconds"]]
        cells += [_cell(axes, axis, "mb", MEMORY_FLOOR) for axis in AXES["mb"]]
        lines.append(f"| {WORDS[part]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(axes: dict[str, Rows], axis: str, cost: str, floor: float) -> str:
    if axis not in axes:
        return ""
    slope = exponent(axes[axis], axis, cost, floor)
    return "-" if slope is None else f"{slope + 0.0:.2f}".replace("-0.00", "0.00")


def page() -> str:
    found = result("growth")
    curves, machine = found["curves"], found["machine"]
    worst = needs(curves)
    rows = "\n".join(
        f"| {WORDS[need.part]} | {need.words} | {need.over:,.2g} |"
        for need in worst
        if need.over > 1
    )
    hours = {
        part: grown(curves[part], "seconds") / 3600
        for part in WORDS
        if "coordinates" in curves[part]
    }
    shown = "\n\n".join(
        f"![{name.removeprefix('growth-').removesuffix('.svg').replace('-', ' by ')}](images/{name})"
        for name in pictures(curves)
    )
    return f"""# What grows how

Seconds of one core and memory of each part of a run, on {machine["cores"]} cores of an {machine["processor"]} (`python benchmarks/growth.py`).
{"Measured with `--quick`, which leaves out the last point of each curve. " if found["quick"] else ""}A cell is the exponent of a curve, fitted to its last three points: 1 means twice the cost for twice the size, 0 no more; "-" means less than {MEMORY_FLOOR:g} MB.
Along a curve one size changes; the others stay at 100 clients, 100,000 coordinates, 50 rounds and one bit (10,000 coordinates for sums among clients, proofs and training; 5 rounds of training). Memory is without the messages that a part was handed.

{table(curves)}

{shown}

## A million clients of ten million coordinates

One round with codes of one bit and one process a part, extrapolated in proportion, or by the exponent where that is above 1.
A round may take an hour of one core, {LIMITS["gigabytes"]:g} GB of memory, {DISK:g} TB of disk, and 10 Gbit/s ({LINK} TB an hour). What takes more:

| part | needs | times the limit |
|---|---|---|
{rows}

A client encodes in {3600 * hours["encode"]:.1f} s, and proves its codes in {3600 * hours["prove"]:.0f} s. Machines could share this work, proofs by client and masks by client or coordinate; no such service is built. A [subset of the coordinates](plan.md#fewer-coordinates) shrinks all parts alike.
"""


def write() -> None:
    """Write the page and its pictures."""
    (ROOT / "docs" / "growth.md").write_text(page())
    for name, drawn in pictures(result("growth")["curves"]).items():
        (ROOT / "docs" / "images" / name).write_text(drawn)


if __name__ == "__main__":
    write()
