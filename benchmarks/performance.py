"""How fast and how large encoding is, by what it depends on: python benchmarks/performance.py

About two minutes. One core unless it says otherwise; every speed is also given over a memory
copy of the same float32 numbers, measured in turn with it.
"""

import subprocess
import sys
import time

import numpy as np
from results import save
from throughput import bench

import randquant as rq
from randquant.aggregation import hadamard
from randquant.channels import cores, encode_payload, wire

COUNT, REPEATS = 10_000_000, 3
CLIP = 1.5


def seconds(work, repeats=REPEATS, prepare=lambda: None):
    """Least time of a call: other users of the machine only make it longer."""
    found = []
    for _ in range(repeats):
        prepared = prepare()
        start = time.perf_counter()
        work() if prepared is None else work(prepared)
        found.append(time.perf_counter() - start)
    return min(found)


def speeds(channel, x, threads=1):
    """Million coordinates a second for each step, and memory copies that fit into one encoding."""
    key, totals, copied = rq.Key.from_seed(0), np.zeros(x.size, dtype=np.int32), np.empty_like(x)
    payload = encode_payload(channel, x, key, threads=threads)
    codes = wire.unpack(channel, payload, x.size)
    encoding = seconds(lambda: encode_payload(channel, x, key, threads=threads))
    copying = seconds(lambda: np.copyto(copied, x))
    return {
        "encode_pack": x.size / encoding / 1e6,
        "unpack_sum": x.size / seconds(lambda: wire.add(channel, payload, totals)) / 1e6,
        "decode": x.size / seconds(lambda: rq.decode(channel, codes)) / 1e6,
        "copies_per_encoding": encoding / copying,
        "bits_per_coordinate": 8 * (len(payload) - wire.HEADER_BYTES) / x.size,
    }


def paper(levels=16):
    return rq.rqm(clip=CLIP, margin=CLIP, levels=levels, keep=0.42)


def rotation(kind, size=1 << 24):
    """The transform of one vector, over a copy of it."""
    vector = np.random.default_rng(0).standard_normal(size).astype(kind)
    other = np.empty_like(vector)
    hadamard(vector[:1024].copy(), 32.0)  # compiles
    turning = seconds(lambda v: hadamard(v, 4096.0), prepare=vector.copy)
    copying = seconds(lambda: np.copyto(other, vector))
    return {
        "coordinates": size,
        "milliseconds": 1e3 * turning,
        "over_memory_copy": turning / copying,
    }


def words():
    """Million words of 64 random bits a second, as the encoder draws them: one a coordinate."""
    buffer = np.empty(1 << 14, dtype=np.uint64)

    def draw():
        stream = rq.Key.from_seed(0).stream()
        for _ in range(COUNT // buffer.size):
            stream(buffer)

    return COUNT / seconds(draw, 10) / 1e6


def first_call():
    """Seconds from starting Python to the first codes, and without those of its imports."""
    code = (
        "import time; a = time.perf_counter(); import numpy as np, randquant as rq; "
        "c = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42); b = time.perf_counter(); "
        "rq.encode(c, np.zeros(100, dtype=np.float32), rq.Key.generate()); "
        "d = time.perf_counter(); print(d - a, d - b)"
    )
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    both = [[float(part) for part in run.stdout.split()] for run in runs]
    return {"with_imports": min(b[0] for b in both), "call_alone": min(b[1] for b in both)}


def best(cases, passes=4):
    """The best of some passes over all cases: on a shared machine minutes differ too."""
    found = {}
    for _ in range(passes):
        for (group, name), case in cases.items():
            now, so_far = speeds(*case), found.setdefault(group, {}).setdefault(name, {})
            for figure, value in now.items():
                better = min if figure == "copies_per_encoding" else max
                so_far[figure] = better(value, so_far.get(figure, value))
    return found


if __name__ == "__main__":
    x = np.random.default_rng(0).standard_normal(COUNT, dtype=np.float32)
    inputs = (2, 5, 17, 65, 257, 769)
    values = {"normal": x} | {
        name: np.full(COUNT, value, dtype=np.float32)
        for name, value in (("-clip", -CLIP), ("0", 0.0), ("clip", CLIP))
    }
    smooth = {v: rq.pbm(clip=CLIP, theta=0.25, trials=15, inputs=v) for v in inputs}
    cases = {
        **{("levels", str(m)): (paper(m), x) for m in (2, 3, 4, 5, 8, 16, 32, 64, 128, 256)},
        **{("vertices", str(v)): (smooth[v], x) for v in inputs},
        **{("dimension", str(d)): (paper(), x[:d]) for d in (10**3, 10**4, 10**5, 10**6, COUNT)},
        **{("dtype", k): (paper(), x.astype(k)) for k in ("float16", "float32", "float64")},
        **{("threads", str(t)): (paper(), x, t) for t in range(1, cores() + 1)},
        **{("input", name): (paper(), value) for name, value in values.items()},
    }
    figures = {
        **best(cases),
        "words": words(),
        "first_call": first_call(),
        "hadamard": {kind: rotation(kind) for kind in ("float32", "float64")},
        "bench": bench(coordinates=COUNT, levels=16, repeats=10),
    }
    for name, value in figures.items():
        print(name, value)
    save("performance", figures)
