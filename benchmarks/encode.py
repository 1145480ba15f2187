"""Encode + pack, unpack + sum, and the naive way, on this machine: python benchmarks/encode.py"""

from results import save
from throughput import bench

if __name__ == "__main__":
    measured = bench(coordinates=10_000_000, levels=16, repeats=10)
    for name in ("encode_pack", "unpack_sum", "naive", "memory_copy"):
        print(name, measured[name])
    save("encode", measured)
