"""Speed of the encoder on a GPU, against a copy of memory on it: python benchmarks/gpu.py

2^28 float32 coordinates, random bits by Philox. Bytes count once where they are read and once where
they are written: 4 bytes in and the code's bits out for each coordinate, 4 in and 4 out for a copy.
Copy and encoder take turns, and the best of all turns counts. The target is 60 % of the copy's.
"""

import sys

import numpy as np

COUNT, CLIP, REPEATS, LEVELS, TARGET = 1 << 28, 1.5, 20, (16, 2), 0.6


def missing() -> str:
    """What this machine lacks; empty if nothing."""
    try:
        import torch
        import triton  # noqa: F401 # pyright: ignore[reportMissingImports]
    except ImportError as error:
        return f"no package {error.name!r}"
    return "" if torch.cuda.is_available() else "no CUDA device"


def milliseconds(work) -> float:
    """Of a call on the device, by its own clock."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def measure() -> dict:
    """GB/s of a copy, and of encoding at each number of levels."""
    import torch

    import randquant as rq
    from randquant.channels.encoding.gpu import encode_tensor

    x = torch.randn(COUNT, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    other = torch.empty_like(x)
    channels = {m: rq.rqm(clip=CLIP, margin=CLIP, levels=m, keep=0.42) for m in LEVELS}
    work = {"copy": lambda: other.copy_(x)} | {
        str(m): lambda c=c: encode_tensor(c, x, seed=1, packed=True) for m, c in channels.items()
    }
    size = {"copy": 8 * COUNT} | {str(m): (4 + c.bits / 8) * COUNT for m, c in channels.items()}
    best = dict.fromkeys(work, np.inf)
    for turn in range(REPEATS + 2):  # the first two compile and fill caches
        for name, run in work.items():
            took = milliseconds(run)
            best[name] = min(best[name], took) if turn > 1 else np.inf
    speed = {name: size[name] / took / 1e6 for name, took in best.items()}
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "coordinates": COUNT,
        "copy_gigabytes_per_second": speed["copy"],
        "levels": {
            name: {
                "milliseconds": best[name],
                "gigabytes_per_second": speed[name],
                "over_copy": speed[name] / speed["copy"],
                "million_coordinates_per_second": COUNT / best[name] / 1e3,
            }
            for name in map(str, LEVELS)
        },
        "target_over_copy": TARGET,
    }


if __name__ == "__main__":
    if lacking := missing():
        print(
            f"Expected a machine with a CUDA device, torch and triton, got {lacking}: "
            "run this benchmark on such a machine. Nothing was measured or saved."
        )
        sys.exit(0)
    from results import save

    found = measure()
    print(f"{found['device']}: copy {found['copy_gigabytes_per_second']:.0f} GB/s")
    for name, row in found["levels"].items():
        print(
            f"{name} levels: {row['gigabytes_per_second']:.0f} GB/s, {row['over_copy']:.0%} of a "
            f"copy's (target: {TARGET:.0%})"
        )
    save("gpu", found)
