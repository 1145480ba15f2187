"""The bound of a whole run beside Rényi composition and the best attack: python benchmarks/tight.py

Mechanisms are calibrated as `plan` does. The attack is the larger of an exact composition (every
coordinate as far apart as it may be, the other clients at one end; integer noise: one coordinate
a round) and Gaussian noise of the least variance, which many coordinates a little apart come to.
"""

import math
import time
from typing import cast

import numpy as np
from results import save
from scipy.special import ive

from randquant.planning.plan.planner import plan
from randquant.privacy.accounting import accountant
from randquant.privacy.accounting.gaussian import gaussian_epsilon
from randquant.privacy.accounting.integer_noise import NoiseRelease
from randquant.privacy.accounting.releases import VectorRelease
from randquant.privacy.certificates.sums.chain import Powers
from randquant.privacy.certificates.vector import squared_distance

CASES = [  # dimension, population, cohort, rounds, epsilon, delta, trust, bits
    (650, 200, 200, 50, 8.0, 1e-5, "aggregate", 16),
    (650, 200, 200, 50, 2.0, 1e-5, "aggregate", 16),
    (1000, 100, 100, 20, 8.0, 1e-5, "aggregate", 16),
    (1000, 40, 40, 20, 8.0, 1e-5, "aggregate", 16),
    (1000, 1000, 1000, 20, 1.0, 1e-5, "aggregate", 16),
    (1_200_000, 10_000, 100, 500, 8.0, 1e-6, "aggregate", 16),
    (1_200_000, 10_000, 100, 500, 8.0, 1e-6, "local", 4),
]
NAMES = ["stochastic-rounding", "skellam", "discrete-gaussian"]


def composed(p: np.ndarray, q: np.ndarray, times: int, delta: float) -> float:
    """Epsilon of independent copies of one pair, hardly above the exact one."""
    # Each loss is split between two places of a grid: this fine, so that it hardly adds variance.
    step, length = min(1e-3, 0.03 / math.sqrt(times)), 2**21
    used = (p > 1e-200) & (q > 1e-200)
    place = np.log(p[used] / q[used]) / step
    low = np.floor(place).astype(int)
    part = (1 - np.exp((low - place) * step)) / (1 - np.exp(-step))
    law = np.zeros(length)
    np.add.at(law, low % length, p[used] * (1 - part))
    np.add.at(law, (low + 1) % length, p[used] * part)
    law = np.maximum(np.fft.irfft(np.fft.rfft(law) ** times, length), 0)
    loss = ((np.arange(length) + length // 2) % length - length // 2) * step
    low, high = 0.0, 60.0
    for _ in range(40):
        middle = (low + high) / 2
        above = law @ np.maximum(-np.expm1(np.minimum(middle - loss, 1.0)), 0)
        low, high = (middle, high) if above > delta else (low, middle)
    return low


def of_bits(release: VectorRelease, delta: float) -> float:
    """Attack on whole updates through a channel of two vertices."""
    channel, clients = release.channel, release.cohort
    width = float(np.ptp(channel.inputs))
    worlds = 2 if release.neighboring == "replace_one" else 1
    square = squared_distance(channel, worlds * release.clip_norm, release.dimension)
    left, right = channel.weights / channel.denominator
    others = Powers(left).of(clients - 1).mass
    a, b = np.convolve(others, left), np.convolve(others, right)
    times = math.floor(release.rounds * min(square / width**2, release.dimension))
    fisher = release._kappa(1.01) if clients == 1 else 0.0
    limit = 2 * fisher / 1.01 * square * release.rounds
    if clients > 1:
        limit = float(((b - a) ** 2 / a).sum()) * square / width**2 * release.rounds
    found = [gaussian_epsilon(math.sqrt(limit), delta)]
    if times > 0:
        found += [composed(p, q, times, delta) for p, q in ((a, b), (b, a))]
    return max(found)


def of_noise(release: NoiseRelease, delta: float) -> float:
    """Attack on integer noise: one coordinate of each round moves by all it may."""
    variance = release.noise.variance * release.cohort
    shift = math.isqrt(release.squared_distance)
    reach = int(14 * math.sqrt(variance)) + shift
    k = np.arange(-reach, reach + 1)
    skellam = type(release.noise).__name__ == "Skellam"
    p = ive(np.abs(k), variance) if skellam else np.exp(-(k**2) / (2 * variance))
    p /= p.sum()
    return composed(p[shift:], p[:-shift], release.rounds, delta)


def measured(name: str, case: tuple) -> dict | None:
    """One mechanism of one setting, or None where the plan has none."""
    dimension, population, cohort, rounds, epsilon, delta, trust, bits = case
    found = plan(
        dimension, population, cohort, rounds, epsilon, delta, trust=trust, bits=bits,
        mechanisms=[name],
    )  # fmt: skip
    entry = found.entries[0]
    if entry.guarantee is None:
        return None
    if entry.baseline:
        return None
    release = found.mechanism.release(dimension, found.need.participations, "replace_one")
    assert release is not None
    started = time.perf_counter()
    bound = accountant.account([release], delta).epsilon
    seconds = time.perf_counter() - started
    renyi, _ = accountant._by_renyi([release], delta)
    if name == "stochastic-rounding":
        attack = of_bits(cast(VectorRelease, release), delta)
    else:
        attack = of_noise(cast(NoiseRelease, release), delta)
    return {
        "setting": f"{dimension:,} / {cohort} / {release.rounds} / {trust}",
        "mechanism": name, "bound": bound, "renyi": renyi, "attack": attack, "delta": delta,
        "over_attack": bound / attack, "renyi_over_attack": renyi / attack, "seconds": seconds,
    }  # fmt: skip


if __name__ == "__main__":
    rows = [row for case in CASES for name in NAMES if (row := measured(name, case))]
    for row in rows:
        print(
            "{setting:34} {mechanism:20} bound {bound:8.4f} rényi {renyi:8.4f} attack "
            "{attack:8.4f} over {over_attack:.4f} {renyi_over_attack:.4f}".format(**row)
        )
    save("tight", {"rows": rows})
