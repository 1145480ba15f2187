"""docs/performance.md from what was measured: python benchmarks/performance_page.py"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def result(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def table(found: dict, first: str) -> str:
    lines = [f"| {first} | encode + pack | unpack + sum | bits a coordinate |", "|---|---|---|---|"]
    for name, speed in found.items():
        lines.append(
            f"| {name} | {speed['encode_pack']:.0f} | {speed['unpack_sum']:.0f} | "
            f"{speed['bits_per_coordinate']:.4g} |"
        )
    return "\n".join(lines)


def page() -> str:
    found, stream = result("performance"), result("stream")
    bench, turned = found["bench"], found["hadamard"]
    copy, own = bench["memory_copy"], bench["encode_pack"]
    million = {
        name: bench[name]["coordinates_per_second_per_core"] / 1e6
        for name in ("encode_pack", "unpack_sum", "naive", "memory_copy")
    }
    per_input = {name: speed["encode_pack"] for name, speed in found["input"].items()}
    slowest, fastest = min(per_input.values()), max(per_input.values())
    return f"""# How fast it is, and what that depends on

`python benchmarks/performance.py` on {found["machine"]["cores"]} cores of an {found["machine"]["processor"]}, shared with others; the best of several passes.
Million coordinates a second, one core, 10 million float32, RQM with 16 levels, AES-256-CTR included, unless a table says otherwise.

| | a core | memory copies that take as long |
|---|---|---|
| encode + pack | {million["encode_pack"]:.0f} | {1 / own["ratio_to_memory_copy"]:.0f} |
| unpack + sum | {million["unpack_sum"]:.0f} | {million["memory_copy"] / million["unpack_sum"]:.1f} |
| RQM as usually written with torch | {million["naive"]:.1f} | {million["memory_copy"] / million["naive"]:.0f} |
| a copy of the float32 numbers, the limit of any encoder | {copy["coordinates_per_second_per_core"] / 1e6:.0f} | 1 |

Encoding is {own["ratio_to_naive"]:.0f} times faster than the usual way. Of its time {100 * million["encode_pack"] / found["words"]:.0f} % is AES, which gives 64 random bits to every coordinate: 32 to
dither, 32 to draw; the other 30 of a draw only where those leave the code open.

{table(found["levels"], "levels")}

Levels that are no power of two share numbers of up to 128 bits: within 1 % of log2(levels), at the price of a second pass.

{table(found["vertices"], "vertices (PBM, 16 codes)")}

{table(found["dimension"], "coordinates")}

{table(found["dtype"], "input")}

{table(found["threads"], "threads")}

**First call**: {found["first_call"]["call_alone"]:.2f} s, and {found["first_call"]["with_imports"]:.1f} s with the start of the package: compiled code is kept on disk.

**Rotation**: the Hadamard transform of {turned["float64"]["coordinates"]:,} numbers takes {turned["float64"]["milliseconds"]:.0f} ms in float64, {turned["float64"]["over_memory_copy"]:.1f} copies of
them, and {turned["float32"]["milliseconds"]:.0f} ms in float32, {turned["float32"]["over_memory_copy"]:.1f} copies. Updates are rotated in float64.

**An update of {stream["coordinates"]:,} coordinates**, in parts (`encode_to`): {stream["seconds"]:.1f} s on {stream["threads"]} threads, {stream["extra_megabytes"]:.0f} MB beside a part of 16.

## What its time tells

The encoder is **not** constant-time. Which entries of its tables it reads depends on the input's cell and on the draw, and so on the code: who shares the
processor's caches with a client may learn of them, as of the update itself, which the client computes on the same machine. Comparisons beyond a table's
first entry are more for some draws than for others. A draw that 32 bits do not settle (below levels · 2^-32 for each coordinate) encodes
16,384 coordinates again. Seen from outside, the time of ten million coordinates is within {100 * (fastest / slowest - 1):.0f} % whether all are -clip, 0, clip or normal, which is
this machine's noise. Where time matters, send payloads at fixed times.

## On a GPU

`randquant.encode.gpu.encode_tensor` is the same encoder as one Triton kernel, on the device. Its random bits come from Philox for simulation, or from AES-256 on
the CPU for deployment, and then its codes are those of the CPU, bit for bit. **It has run on Triton's interpreter only**: no speed was measured.
"""


if __name__ == "__main__":
    (ROOT / "docs" / "performance.md").write_text(page())
