"""A whole update by its rank, beside its peers: python benchmarks/rank.py [PART ...]

Parts: means (of digits' pixels and of an embedding, and a histogram), training (digits), certified
(error over Gaussian noise at equal guarantee, and whether it is what was asked for), peers (the
same of PrivUnit, RRSC and one bit), sampled (errors of the real samplers), speed. Without a name:
all, in some minutes. The rows "bias", the worst update that a search found for rotations that are
not uniformly distributed, stay as commit d2e3e6c measured them.
Each part stores its rows in results/rank.json, each with the commit that measured it; all but
sampled and speed keep the rows that are there: delete them to measure again.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import torch
from local_peers import PrivUnit, RotatedSimplex
from results import commit, save
from results import stored as record
from sklearn.datasets import load_digits

from randquant.aggregation import LocalGaussian, hadamard
from randquant.channels import Key
from randquant.local_training import Local
from randquant.planning import OutOfReach, Privacy, built, calibrate, gaussian_multiplier
from randquant.planning.planner import plan
from randquant.privacy import account
from randquant.training import train
from randquant_papers.rank import RankMechanism, gain, graded_rank, top_sum, two_levels

for folder in ("tests", "papers/tests"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))

import rank_attack  # noqa: E402, F401 - adds the attack on ranks
from lower_ends import lower_end  # noqa: E402

DELTA = 1e-6

COMMIT = commit()
"""Of the code that this process has loaded, for each row that it measures."""

STARTS: dict[tuple[str, float, int], float] = {}
"""What was found for another dimension, which hardly differs."""


BUILD = {"rank": RankMechanism, "graded-rank": graded_rank}


def calibrated(name: str, dimension: int, epsilon: float, rounds: int):
    """(error over Gaussian noise, epsilon's ends, bytes) with the same table in each round."""
    build = BUILD[name]
    found = calibrate(
        lambda t: build(1.0, 1 / t), epsilon, DELTA, dimension, rounds,
        start=STARTS.get((name, epsilon, rounds), rounds / epsilon), reach=(0.034, 1e5),
    )  # fmt: skip
    STARTS[name, epsilon, rounds] = found.noise
    noise = found.mechanism.expected_error(dimension).deviation(1)
    relative = noise / (2 * gaussian_multiplier(epsilon, DELTA, rounds))
    lower = lower_end([found.mechanism.release(dimension, rounds)], DELTA)
    ends = {"lower": lower, "upper": found.guarantee.epsilon}
    return relative, ends, sent_bytes(found.mechanism, dimension)


def sent_bytes(mechanism, dimension: int) -> int:
    """Bytes of an update of a client whose number the server knows."""
    if isinstance(mechanism, RankMechanism):
        mechanism = mechanism.of_client(0)
    return mechanism.upload_bytes(dimension)


def sent(mechanism, updates, keys, first: int = 0):
    """Payloads of clients with consecutive numbers, in a list where nothing follows from those."""
    if not isinstance(mechanism, RankMechanism):
        return mechanism.encode_many(updates, keys)
    numbered = enumerate(zip(updates, keys, strict=True), first)
    return {c: mechanism.of_client(c).encode(update, key) for c, (update, key) in numbered}


def certified() -> list[dict]:
    """Error over that of Gaussian noise on each update, accounted exactly."""
    rows = stored("certified")
    done = {(row.get("epsilon"), row.get("rounds")) for row in rows}
    for epsilon in (1.0, 2.0, 4.0, 8.0):
        once, _, _ = calibrated("rank", 8192, epsilon, 1)
        # With a schedule both need sqrt(rounds) times the noise in a mean of the same clients.
        for rounds in (1, 2, 5, 10, 20, 50, 200):
            if (epsilon, rounds) in done:
                continue
            row = {"epsilon": epsilon, "rounds": rounds, "schedule": once}
            for name in ("rank", "graded-rank"):
                try:
                    row[name], ends, _ = calibrated(name, 8192, epsilon, rounds)
                except OutOfReach:
                    continue
                row[f"{name} epsilon"] = ends
            rows.append(row)
            print(row, flush=True)
    found = {row.get("dimension") for row in rows}
    for size in (2**10, 2**13, 2**17, 2**21):
        if size in found:
            continue
        row = {"dimension": size, "bytes_alone": RankMechanism(1.0, 8.0).upload_bytes(size)}
        row["rank"], ends, row["bytes"] = calibrated("rank", size, 8.0, 1)
        best = gain(two_levels(size, 8.0))  # papers/docs/rank-theory.md, Proposition 4
        row["dual"] = 1 + DELTA * (top_sum(size, 1) / best - 1)
        row["rank epsilon"] = ends
        rows.append(row)
        print(row, flush=True)
    verdicts(rows)
    return rows


def verdicts(rows: list[dict]) -> None:
    """Print whether the certified figures are what was asked for, at epsilon 8 and delta 1e-6."""
    eight = {row["rounds"]: row for row in rows if row.get("epsilon") == 8.0}
    ends = [row[name] for row in rows for name in row if name.endswith(" epsilon")]
    [large] = [row for row in rows if row.get("dimension") == 2**21]
    turns = max(row["schedule"] for rounds, row in eight.items() if rounds <= 50)
    for what, measured, limit in (
        ("error over Gaussian noise, a schedule of 1 to 50 rounds", turns, 0.29),
        ("the same table in 5 rounds", eight[5]["rank"], 0.55),
        ("the same table in 20 rounds", eight[20]["graded-rank"], 0.91),
        ("bytes of an update of 2**21 coordinates", large["bytes"], 3),
        ("upper over lower end", max(end["upper"] / end["lower"] for end in ends), 1.01),
    ):
        verdict = "holds" if measured <= limit else "FAILS"
        print(f"{what}: {measured:.6g}, at most {limit} was asked for: {verdict}", flush=True)


def seconds(action, times: int) -> float:
    """CPU seconds of a call, the least of some."""
    action()
    found = []
    for _ in range(times):
        started = time.process_time()
        action()
        found.append(time.process_time() - started)
    return min(found)


def speed() -> list[dict]:
    """CPU time of a client and of the server, beside a copy and the transform, in one run."""
    rows = []
    for exponent in (13, 17, 21):
        mechanism, size = RankMechanism(1.0, 8.0), 2**exponent
        x = np.random.default_rng(0).normal(size=size).astype(np.float32)
        rotation, wide = mechanism.rotation(size, 0), x.astype(np.float64)
        times, scratch = 3 if exponent > 20 else 20, wide.copy()
        client = seconds(lambda m=mechanism, x=x: m.encode(x, Key.from_seed(0)), times)
        turned = seconds(lambda r=rotation, w=wide: r.forward(w), times)
        copied = seconds(wide.copy, times)
        transform = seconds(lambda w=scratch, s=size: hadamard(w, math.sqrt(s)), times)
        payloads = [mechanism.encode(x, Key.from_seed(c)) for c in range(4)]
        server = seconds(lambda m=mechanism, p=payloads, s=size: m.mean(p, s), 2) / len(payloads)
        rows.append({"dimension": size, "encode": client, "rotation": turned,
                     "copy": copied, "transform": transform, "decode": server,
                     "encode_over_rotation": client / turned, "encode_over_copy": client / copied,
                     "encode_over_transform": client / transform,
                     "decode_over_transform": server / transform})  # fmt: skip
        print(rows[-1], flush=True)
    return [*rows, decoded_many()]


def decoded_many(clients: int = 1000, size: int = 2**17) -> dict:
    """CPU seconds and most memory of the mean of many clients, each with its own rotation."""
    mechanism, indices = (
        RankMechanism(1.0, 8.0),
        np.random.default_rng(1).integers(0, 2 * size, clients),
    )
    form = mechanism.form(size)
    payloads = [form.payload(c, int(index)) for c, index in enumerate(indices)]
    mechanism.mean(payloads[:1], size)
    tracemalloc.start()
    mechanism.mean(payloads[:20], size)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    started = time.process_time()
    mechanism.mean(payloads, size)
    row = {"dimension": size, "clients": clients, "seconds": time.process_time() - started,
           "most_memory_over_an_update": most / (8 * size)}  # fmt: skip
    print(row, flush=True)
    return row


def peers() -> list[dict]:
    """Error over Gaussian noise at equal certified guarantee, the same mechanism in each round."""
    # In several rounds errors depend on the dimension even less than in one.
    shapes = [(13, 5), (13, 20), (13, 1), (17, 1), (21, 1), (10, 1), (13, 200)]
    rows = stored("peers")
    done = {(row["epsilon"], row["dimension"], row["rounds"]) for row in rows}
    for (exponent, rounds), epsilon in itertools.product(shapes, (8.0, 4.0, 2.0, 1.0)):
        size = 2**exponent
        if (epsilon, size, rounds) in done:
            continue
        row = {"epsilon": epsilon, "dimension": size, "rounds": rounds}
        for name in PEERS:
            row[name] = of_peer(name, size, epsilon, rounds)
        for name in ("rank", "graded-rank") if rounds > 1 else ("rank",):
            with contextlib.suppress(OutOfReach):
                relative, ends, size_sent = calibrated(name, size, epsilon, rounds)
                row[name] = of(relative, ends["upper"], size_sent)
        asked = plan(
            size,
            1000,
            1000,
            rounds,
            epsilon,
            DELTA,
            privacy=Privacy(bits=1, max_participations=rounds),
            trust="local",
            mechanisms=["local-gaussian", "stochastic-rounding"],
        )
        for entry in asked.entries:
            row[entry.mechanism] = of(entry.noise.relative, entry.guarantee.epsilon, entry.bytes_up)
        rows.append(row)
        print(row, flush=True)
        store("peers", rows)
    return rows


PEERS = {"privunit": PrivUnit, "rrsc": RotatedSimplex}


def of(relative: float, epsilon: float, size_sent: int) -> dict:
    return {"error": relative, "epsilon": epsilon, "bytes": size_sent}


def of_peer(name: str, size: int, epsilon: float, rounds: int) -> dict:
    """A peer calibrated like a mechanism of ours, with the error of its own formula."""
    build = PEERS[name]
    found = calibrate(
        lambda t: build(size, 1 / t), epsilon, DELTA, size, rounds,
        start=STARTS.get((name, epsilon, rounds), rounds / epsilon), reach=(0.034, 1e5),
    )  # fmt: skip
    STARTS[name, epsilon, rounds] = found.noise
    peer = found.mechanism
    gaussian = 2 * gaussian_multiplier(epsilon, DELTA, rounds)
    relative = 1 / (peer.gain * math.sqrt(size)) / gaussian
    return of(relative, found.guarantee.epsilon, peer.bytes)


def sampled(clients: int = 2000, epsilon: float = 8.0) -> list[dict]:
    """Means of equal updates from each real sampler, once each, beside what its formula says."""
    rows = []
    for size, times in ((64, clients), (8192, clients // 10)):
        update = np.random.default_rng(size).normal(size=size)
        update /= np.linalg.norm(update)
        noise = gaussian_multiplier(epsilon, DELTA, 1)
        means, said = {}, {}
        for name, build in PEERS.items():
            peer = build(size, epsilon)
            means[name] = sum(peer.decoded(update, c) for c in range(times)) / times
            said[name] = (peer.bytes, math.sqrt((peer.gain**-2 - 1) / size))
        for mechanism in (RankMechanism(1.0, epsilon), LocalGaussian(1.0, 2 * noise * 1.0001),
                          calibrated_bits(size, 1.0)):  # fmt: skip
            name = type(mechanism).__name__
            keys = [Key.from_seed(c) for c in range(times)]
            payloads = sent(mechanism, np.tile(update, (times, 1)), keys)
            means[name] = np.asarray(mechanism.mean(payloads, size), dtype=np.float64)
            expected = mechanism.expected_error(size).deviation(1)
            said[name] = (sent_bytes(mechanism, size), expected)
        for name, mean in means.items():
            measured = float(np.sqrt(np.mean((mean - update) ** 2) * times))
            rows.append({"mechanism": name, "dimension": size, "clients": times, "error": measured,
                         "expected": said[name][1], "bytes": said[name][0]})  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def held(task: str, clients: int) -> tuple[np.ndarray, float]:
    """(an update of each client, float32; the clipping norm)."""
    generator, images = np.random.default_rng(0), load_digits().data / 16
    public, private = images[:600], images[600:]
    chosen = generator.integers(0, len(private), clients)
    if task == "pixels":
        vectors = private - 0.3
    elif task == "embedding":  # principal components of public images
        _, _, axes = np.linalg.svd(public - public.mean(axis=0))
        vectors = (private - public.mean(axis=0)) @ axes[:16].T
    else:  # a histogram of the grey value of one pixel of each client
        grey = (private[chosen, generator.integers(0, 64, clients)] * 16).astype(int)
        return np.eye(17, dtype=np.float32)[grey], 1.0
    return vectors[chosen].astype(np.float32), float(np.linalg.norm(vectors, axis=1).max())


def means(clients: int = 100_000) -> list[dict]:
    """Means over clients that hold one image each, and a histogram: digits', once, epsilon 8."""
    rows = stored("means")
    done = {(row.get("task"), row["mechanism"]) for row in rows}
    rows = [row for row in rows if "task" in row]
    for task in ("pixels", "embedding", "histogram"):
        updates, clip_norm = held(task, clients)
        size, truth = updates.shape[1], updates.mean(axis=0, dtype=np.float64)
        for mechanism in (
            RankMechanism(clip_norm, 7.999),
            LocalGaussian(clip_norm, 2 * gaussian_multiplier(8.0, DELTA, 1) * 1.0001),
            calibrated_bits(size, clip_norm),
        ):
            name = type(mechanism).__name__
            if (task, name) in done:
                continue
            root, total = Key.from_seed(5), np.zeros(size)
            for start in range(0, clients, 10_000):
                keys = [root.fold_in(c) for c in range(start, start + 10_000)]
                payloads = sent(mechanism, updates[start : start + 10_000], keys, start)
                total += np.asarray(mechanism.mean(payloads, size), dtype=np.float64)
            error = total / (clients / 10_000) - truth
            rows.append({"task": task, "mechanism": name, "clients": clients, "dimension": size,
                         "epsilon": account([mechanism.release(size, 1)], DELTA).epsilon,
                         "error": float(np.sqrt(np.mean(error**2))),
                         "expected": mechanism.expected_error(size).deviation(clients),
                         "bytes": sent_bytes(mechanism, size)})  # fmt: skip
            print(rows[-1], flush=True)
            store("means", rows)
    return rows


def calibrated_bits(dimension: int, clip_norm: float):
    """One bit a coordinate at epsilon 8, once."""
    asked = plan(
        dimension,
        1000,
        1000,
        1,
        8.0,
        DELTA,
        privacy=Privacy(bits=1, clip_norm=clip_norm),
        trust="local",
        mechanisms=["stochastic-rounding"],
    )
    return asked.mechanism


def training(seeds: int = 5) -> list[dict]:
    """Digits' 650 parameters, 2,000 clients of 8 images each, in one of 20 rounds each."""
    pixels, digits = load_digits(return_X_y=True)
    pixels, digits = torch.tensor(pixels / 16).float(), torch.tensor(digits)
    rows = stored("training")
    done = {(row["mechanism"], row["seed"]) for row in rows}
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        held = [generator.integers(0, 1500, 8) for _ in range(2000)]
        clients = [(pixels[k], digits[k]) for k in held]
        test = pixels[1500:], digits[1500:]
        for name in ("rank", "local-gaussian", "stochastic-rounding"):
            if (name, seed) in done:
                continue
            run = train(
                torch.nn.Linear(64, 10),
                clients,
                test=test,
                mechanism=once_of(name),
                rounds=20,
                cohort=100,
                local=Local(learning_rate=0.1),
                privacy=Privacy(max_participations=1, clip_norm=0.5),
                seed=seed,
                progress=False,
            )
            rows.append({"mechanism": name, "seed": seed, "accuracy": run.summary.accuracy,
                         "epsilon": run.guarantee.epsilon, "delta": 1e-5,
                         "bytes": run.upload_bytes})  # fmt: skip
            print(rows[-1], flush=True)
            store("training", rows)
    return rows


def once_of(name: str):
    """The mechanism of 650 coordinates at epsilon 8 and delta 1e-5, once."""
    if name == "rank":
        return calibrate(
            lambda t: RankMechanism(0.5, 1 / t), 8.0, 1e-5, 650, 1, reach=(0.034, 1e5)
        ).mechanism
    privacy = Privacy(bits=1, clip_norm=0.5)
    asked = plan(650, 2000, 100, 20, 8.0, 1e-5, privacy=privacy, trust="local", mechanisms=[name])
    return built(asked.entries[0], asked.need)


def stored(part: str) -> list[dict]:
    """What this commit's code or an earlier one has measured: long parts go on where they ended."""
    return record("rank").get(part, [])


def store(part: str, rows: list[dict]) -> None:
    others = {name: found for name in (*PARTS, "bias") if (found := stored(name))}
    named = [{"commit": COMMIT, **row} for row in rows]  # a stored row keeps its own
    save("rank", {"delta": DELTA, **others, part: named})


PARTS = {
    "means": means,
    "training": training,
    "certified": certified,
    "peers": peers,
    "sampled": sampled,
    "speed": speed,
}


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(PARTS)
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise SystemExit(f"Expected parts among {', '.join(PARTS)}, got {unknown[0]}.")
    for part in chosen:
        store(part, PARTS[part]())
