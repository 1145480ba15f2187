"""docs/performance.md and its pictures from what was measured: python benchmarks/performance_page.py"""

import json
from pathlib import Path

from randquant.reports import Axis, Figure, charts, line_chart, pages

ROOT = Path(__file__).parents[1]
STYLE = (pages.TEMPLATES / "style.css").read_text()
COLOURS = STYLE[: STYLE.index("* {")]


def result(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def picture(figure: Figure) -> str:
    """A figure as a file of its own, in the colours of whoever looks at it."""
    drawn = charts.coloured(charts.svg(figure, standalone=True)).replace(
        'fill="white"', 'fill="var(--paper)"', 1
    )
    return drawn.replace(">", f"><style>{COLOURS}</style>", 1) + "\n"


def speed_lines(found: dict, title: str, x_label: str) -> Figure:
    """Levels that are no power of two are packed in another way: lines of their own."""
    names = {"encode_pack": ("encode + pack", "c1"), "unpack_sum": ("unpack + sum", "c2")}
    apart = [x for x in found if x_label == "levels" and int(x).bit_count() > 1]
    lines = [
        (label + more, [(float(x), found[x][name]) for x in places], colour + style)
        for more, places, style in (
            ("", [x for x in found if x not in apart], ""),
            (f", {' and '.join(apart)} levels", apart, " dashed"),
        )
        for name, (label, colour) in names.items()
        if places
    ]
    unit = Axis("million coordinates a second", log=True)
    return line_chart(title, lines, Axis(x_label, log=True), unit)


def pictures() -> dict[str, str]:
    """Each file in docs/images and what is in it."""
    found = result("performance")
    figures = {
        "levels": speed_lines(found["levels"], "Speed against levels (RQM)", "levels"),
        "vertices": speed_lines(
            found["vertices"], "Speed against vertices (PBM, 16 codes)", "vertices"
        ),
        "dimension": speed_lines(
            found["dimension"], "Speed against dimension (RQM, 16 levels)", "coordinates"
        ),
    }
    return {f"performance-{name}.svg": picture(figure) for name, figure in figures.items()}


CONTESTANTS = {
    "ours": "ours: gradients, encode, pack, sum, decode, step",
    "bare": "bare torch, two threads: forward and backward alone",
    "pfl": "pfl 0.6.0, two processes, its local Gaussian mechanism",
}


def rounds(found: dict) -> str:
    lines = ["| a round, milliseconds | CNN | softmax regression |", "|---|---|---|"]
    for contestant, words in CONTESTANTS.items():
        took = [found[m]["milliseconds_per_round"][contestant] for m in ("cnn", "softmax")]
        lines.append(f"| {words} | {took[0]:.0f} | {took[1]:.1f} |")
    return "\n".join(lines)


def simulation(found: dict) -> str:
    more = max(
        found[m]["megabytes"]["peak"] - found[m]["megabytes"]["data"] for m in ("cnn", "softmax")
    )
    return f"""## A round of simulation

`python benchmarks/simulate.py DATA_DIR PFL`: 40 clients of 100 Fashion-MNIST images each, out of 3,400, RQM with 16 levels, two cores; the best of
{found["passes"]} passes, in each the median of {found["rounds"]} rounds.

{rounds(found)}

In addition to {found["cnn"]["megabytes"]["data"]:.0f} MB of training images the process takes {more:.0f} MB."""


def memory(found: dict) -> str:
    words = {
        "tensors": "3,400 clients' own tensors",
        "memory-mapped": "rows of a memory-mapped file",
        "function": "a function, a million clients of 100 x 20",
    }
    lines = [
        "| clients | MB | without pages of files | seconds |",
        "|" + "---|" * 4,
    ]
    for form in found["forms"]:
        if form["clients"] not in words:
            continue
        lines.append(
            f"| {words[form['clients']]} | {form['peak_mb']:,} | {form['own_mb']:,} | "
            f"{form['seconds_to_first_round']} |"
        )
    table = "\n".join(lines)
    return f"""## Memory

`python benchmarks/memory.py`: the most memory of a process that trains on {found["data_mb"]:,} MB of data, of which Python, torch and randquant alone take {found["forms"][0]["imported_mb"]} MB, and the processor's seconds to the end of the first round. The system takes pages of files back when it needs them.

{table}

Data below 256 MB are joined to one table, a copy."""


def page() -> str:
    found = result("performance")
    bench = found["bench"]
    million = {
        name: bench[name]["coordinates_per_second_per_core"] / 1e6
        for name in ("encode_pack", "unpack_sum", "naive")
    }
    per_input = {name: speed["encode_pack"] for name, speed in found["input"].items()}
    slowest, fastest = min(per_input.values()), max(per_input.values())
    return f"""# Throughput, and what it depends on

`python benchmarks/performance.py` on {found["machine"]["cores"]} cores of an {found["machine"]["processor"]}, shared with others; the best of several passes.
RQM with 16 levels, 10 million float32, one core, AES-256-CTR included, unless said otherwise:

| | million coordinates a second |
|---|---|
| encode + pack; with two threads | {million["encode_pack"]:.0f}; {found["threads"]["2"]["encode_pack"]:.0f} |
| unpack + sum | {million["unpack_sum"]:.0f} |
| RQM as usually written with torch | {million["naive"]:.1f} |

![speed against levels](images/performance-levels.svg)

If the number of levels is no power of two, a second pass packs a code into log2(levels) bits within 1 %.

![speed against vertices](images/performance-vertices.svg)

![speed against dimension](images/performance-dimension.svg)

**First call**: {found["first_call"]["call_alone"]:.2f} s, and {found["first_call"]["with_imports"]:.1f} s with the import of the package: compiled code is cached on disk.

## Timing

The encoder is **not** constant-time: a process that shares the processor's caches with a client may learn about its input, and rare draws take longer. Between inputs that are all -clip, 0, clip or normal the time of ten million coordinates varies by at most {100 * (fastest / slowest - 1):.0f} %, this machine's noise. If timing matters, send payloads at fixed times.

{simulation(result("simulate"))}

{memory(result("memory"))}
"""


if __name__ == "__main__":
    (ROOT / "docs" / "performance.md").write_text(page())
    for name, drawn in pictures().items():
        (ROOT / "docs" / "images" / name).write_text(drawn)
