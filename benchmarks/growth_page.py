"""docs/growth.md and its pictures, from results/growth.json: python benchmarks/growth_page.py"""

from __future__ import annotations

import math
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
AXES = ("clients", "coordinates", "rounds", "bits")
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
        for axis in AXES[:3] if cost == "seconds" else AXES[:2]:
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
    head = "| | " + " | ".join([*AXES, *(f"memory, {axis}" for axis in AXES[:3])]) + " |"
    lines = [head, "|" + "---|" * 8]
    for part, axes in curves.items():
        cells = [_cell(axes, axis, "seconds", 0.0) for axis in AXES]
        cells += [_cell(axes, axis, "mb", MEMORY_FLOOR) for axis in AXES[:3]]
        lines.append(f"| {WORDS[part]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(axes: dict[str, Rows], axis: str, cost: str, floor: float) -> str:
    if axis not in axes:
        return ""
    slope = exponent(axes[axis], axis, cost, floor)
    return "-" if slope is None else f"{slope + 0.0:.2f}".replace("-0.00", "0.00")


def points(curves: dict[str, dict[str, Rows]]) -> str:
    lines = ["| the largest that was measured | seconds | MB |", "|---|---|---|"]
    for part, axes in curves.items():
        row = max((row for rows in axes.values() for row in rows), key=lambda row: row["seconds"])
        sizes = ", ".join(f"{row[axis]:,} {axis}" for axis in AXES if axis in axes)
        lines.append(f"| {WORDS[part]}: {sizes} | {row['seconds']:.3g} | {max(0, row['mb']):.0f} |")
    return "\n".join(lines)


def page() -> str:
    found = result("growth")
    curves, machine = found["curves"], found["machine"]
    worst = needs(curves)
    large = result("helper_sums")["rows"][0]
    whole = TARGET["clients"] * TARGET["coordinates"] / (large["clients"] * large["dimension"])
    rows = "\n".join(
        f"| {WORDS[need.part]} | {need.words} | {need.over:,.2g} |" for need in worst[:10]
    )
    hours = {
        part: grown(curves[part], "seconds") / 3600
        for part in WORDS
        if "coordinates" in curves[part]
    }
    cores = {part: math.ceil(hours[part]) for part in ("add", "helper_server", "helper", "verify")}
    kept, group = masked_terabytes(), 1000
    narrow = wire.masked(TARGET["coordinates"], wire.sum_bits(2, group)) * TARGET["clients"] / 1e12
    images = {name: name.removesuffix(".svg").replace("-", " ") for name in pictures(curves)}
    shown = "\n\n".join(f"![{words}](images/{name})" for name, words in images.items())
    return f"""# What grows how

`python benchmarks/growth.py` on {machine["cores"]} cores of an {machine["processor"]}: seconds of one core and memory of each part of a run, each point in a process of its own.
{"Measured with `--quick`, which leaves out the last point of each curve. " if found["quick"] else ""}A cell is the exponent of a curve: 1 is twice the cost for twice the size, 0 none more. It is fitted to the last three points; where memory has "-", no point takes {MEMORY_FLOOR:g} MB more than before.
Where curves meet there are 100 clients, 100,000 coordinates, 50 rounds and one bit (10,000 coordinates for sums among clients, proofs and training, which has 5 rounds).
Memory is without the messages that a part was handed.

{table(curves)}

{points(curves)}

{shown}

## A million clients of ten million coordinates

Computed from the curves, for one round with codes of one bit and one process a part: the cost along coordinates times its growth along clients, each from the largest point in proportion to the size, or by its exponent where that is above 1. Fixed costs in these points make the figures too large rather than too small.
The last column is a multiple of what a round may take: an hour of one core, {LIMITS["gigabytes"]:g} GB of memory, {DISK:g} TB of disk, and 10 Gbit/s ({LINK} TB an hour).

| part | needs | times the limit |
|---|---|---|
{rows}

In proportion to {large["clients"]:,} clients of {large["dimension"]:,} coordinates, which `benchmarks/helper_sums.py` measured, the helper would need {large["helper_seconds"] * whole / 3600:.1f} hours.

**What breaks first is {WORDS[worst[0].part]}: {worst[0].words}.** What a client does is not the limit: encoding takes {3600 * hours["encode"]:.1f} s, a proof {3600 * hours["prove"]:.0f} s. None of the following is built as a service of several machines; each follows from properties that the code has.

**Several helpers' cores.** The helper's work is {hours["helper"]:,.1f} core hours, and it is a sum over clients of masks that are streams of a cipher with a counter: any range of clients, or of coordinates, can be added by itself, and sums of ranges add up. With {cores["helper"]} of them, or more, a round takes an hour at most; nothing but seeds has to reach them, and what they return is one vector each.

**Streams by tree.** {kept:,.0f} TB of masked vectors are kept until the helper has said whose seeds opened. With trees of groups of {group:,} clients, each group is a sum of its own with a helper's answer of its own, so that a leaf keeps its group's vectors only ({kept / TARGET["clients"] * group * 1000:,.0f} GB, or
{narrow / TARGET["clients"] * group * 1000:,.0f} GB because a sum of {group:,} needs a narrower modulus: {narrow:,.0f} TB instead of {kept:,.0f} are sent) and passes on one vector. A group's sum is seen by its leaf, though: the noise must then suffice for a group of {group:,}, and not for a million. To hide the groups' sums the leaves must keep the masks on and the helper answer for all of them at once, which needs the wide modulus.

**Sharded servers.** Coordinates are independent in every sum: a server for each thousandth of the coordinates receives {kept:,.0f} GB and works {hours["helper_server"] / 1000 * 60:,.1f} minutes. Rotation is the client's, and decoding of shards ends in one inverse rotation of {TARGET["coordinates"]:,} numbers. With {cores["helper_server"]} cores in all a round takes an hour.

**Proofs.** Verifying is {hours["verify"]:,.0f} core hours: with proofs it is the largest part{"" if worst[0].part == "verify" else " of time" if hours["verify"] == max(hours.values()) else ""}, and each client's proof is verified by itself, so that {cores["verify"]:,} cores do it in an hour. Fewer coordinates help all parts alike: a public random subset of a hundredth of the coordinates ([plan](plan.md)) leaves a hundredth of all this.
"""


def write() -> None:
    """Write the page and its pictures."""
    (ROOT / "docs" / "growth.md").write_text(page())
    for name, drawn in pictures(result("growth")["curves"]).items():
        (ROOT / "docs" / "images" / name).write_text(drawn)


if __name__ == "__main__":
    write()
