"""Errors of statistics beside OpenDP's and diffprivlib's, at equal epsilon and delta.

python benchmarks/statistics_peers.py [--draws 1000] [--records 5000]

Peers that are not installed are left out. All protect one record among as many (change-one): of
OpenDP a distance of 2 on data of known size, of diffprivlib's histogram, which counts added and
removed records, half of epsilon. A table of several questions is split evenly among them: by
OpenDP as pure epsilon, or as zero-concentrated privacy with Gaussian noise, whichever is better.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import warnings
from collections.abc import Callable

import numpy as np
from results import save

import randquant as rq
from randquant.channels import Key
from randquant.statistics import survey

EPSILON, DELTA = 1.0, 1e-6
GROUPS = [*range(10)]
STEPS = 128

MEANS = {"age": (18, 100), "weight": (30, 200), "pressure": (80, 220), "pulse": (40, 200),
         "height": (120, 220), "sodium": (100, 180)}  # fmt: skip
COUNTS = ("ward", "drug", "cause", "blood", "doctor")
QUERIES = {
    **{name: rq.Mean(*ends) for name, ends in MEANS.items()},
    **{name: rq.Counts(GROUPS) for name in COUNTS},
    "stay": rq.Quantiles(0, 64, STEPS, at=[0.5]),
}
SIX = [*[*MEANS][:3], *COUNTS[:2], "stay"]
TASKS = (["age"], ["ward"], ["stay"], SIX, [*QUERIES])

Draw = Callable[[], np.ndarray]
Errors = dict[str, float]


def data(records: int) -> dict[str, np.ndarray]:
    """People of a hospital, who are within the bounds."""
    rng = np.random.default_rng(0)
    columns = {
        name: np.clip(rng.normal(low + 0.4 * (high - low), 0.12 * (high - low), records), low, high)
        for name, (low, high) in MEANS.items()
    }
    columns |= {name: np.minimum(rng.geometric(0.25, records) - 1, 9) for name in COUNTS}
    return {**columns, "stay": np.clip(rng.lognormal(1.6, 0.8, records), 0, 64)}


def exact(name: str, values: np.ndarray) -> np.ndarray:
    """What a query asks for, without noise."""
    match QUERIES[name]:
        case rq.Mean():
            return np.array([values.mean()])
        case rq.Counts():
            return np.bincount(values, minlength=len(GROUPS)).astype(float)
    return np.array([np.quantile(values, 0.5)])


def rms(draws: int, draw: Draw, truth: np.ndarray) -> float:
    """Root mean squared error of a number."""
    return math.sqrt(np.mean([(draw() - truth) ** 2 for _ in range(draws)]))


def ours(names: list[str], columns: dict, trust: str, draws: int) -> Errors:
    """Errors of one table."""
    count = len(columns["age"])
    queries = {name: QUERIES[name] for name in names}
    # A sum of ten clients: how many there are changes nothing but how many shares are drawn.
    clients = 10 if trust == "aggregate" else count
    terms = survey(queries, EPSILON, DELTA, trust, clients, count, {})
    exactly = terms.vector(columns, Key.generate())
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for _ in range(draws):
        noise = sum(terms.share(Key.generate()) for _ in range(terms.shares))
        for name, answer in terms.read(exactly + noise, count).items():
            truth = exact(name, columns[name])
            estimates = [each.estimate for each in answer.values()][: len(truth)]
            found[name].append((np.array(estimates) - truth) ** 2)
    return {name: math.sqrt(np.mean(squares)) for name, squares in found.items()}


def opendp(names: list[str], columns: dict, draws: int) -> Errors:
    """Errors of the better of both ways to split the budget."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious", "idealized-numerics")
    every = []
    for pure in (True, False):
        budget = EPSILON if pure else rho(dp)
        every.append({
            name: rms(draws, release(dp, name, columns[name], budget / len(names), pure),
                      exact(name, columns[name]))
            for name in names
        })  # fmt: skip
    return min(every, key=lambda errors: math.prod(errors.values()))


def rho(dp) -> float:
    """The zero-concentrated budget that is worth epsilon and delta."""
    number = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)

    def made(scale):
        return dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*number, scale=scale))

    low, high = 0.1, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = made(middle).map(1.0).epsilon(DELTA) <= EPSILON
        low, high = (low, middle) if enough else (middle, high)
    return 1 / (2 * high**2)


def release(dp, name: str, values: np.ndarray, budget: float, pure: bool) -> Draw:
    """One of OpenDP's measurements, with the least noise that the budget allows."""
    query, size = QUERIES[name], len(values)
    counted = isinstance(query, rq.Counts)
    ends = None if counted else (float(query.low), float(query.high))
    kind = dp.atom_domain(T="i32") if counted else dp.atom_domain(bounds=ends, nan=False)
    space = dp.vector_domain(kind, size=size), dp.symmetric_distance()
    noise = dp.m.then_laplace if pure else dp.m.then_gaussian
    measure = dp.max_divergence() if pure else dp.zero_concentrated_divergence()
    metric = "L1Distance<i32>" if pure else "L2Distance<i32>"

    def build(scale: float):
        match query:
            case rq.Counts():
                counts = dp.t.then_count_by_categories(GROUPS, MO=metric, TOA="i32")
                return space >> counts >> noise(scale)
            case rq.Mean():
                return space >> dp.t.then_mean() >> noise(scale)
        steps = np.linspace(*ends, STEPS + 1).tolist()
        return space >> dp.m.then_private_quantile(measure, steps, 0.5, scale)

    least = dp.binary_search_chain(build, d_in=2, d_out=budget, T=float)
    given = values.tolist()
    return lambda: np.atleast_1d(least(given))[: len(GROUPS)]


def diffprivlib(names: list[str], columns: dict, draws: int) -> Errors:
    """Errors of its tools, each with an equal part of epsilon."""
    from diffprivlib import tools

    part, errors = EPSILON / len(names), {}
    for name in names:
        query, values = QUERIES[name], columns[name]
        match query:
            case rq.Counts():
                histogram = functools.partial(tools.histogram, bins=10, range=(-0.5, 9.5))

                def found(values=values, histogram=histogram):
                    return histogram(values, part / 2)[0]

            case rq.Mean():
                found = functools.partial(tools.mean, values, part, (query.low, query.high))
            case rq.Quantiles():
                ends = (query.low, query.high)
                found = functools.partial(tools.quantile, values, 0.5, part, ends)
        errors[name] = rms(draws, found, exact(name, values))
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--records", type=int, default=5000)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    columns, rows = data(given.records), []
    for names in TASKS:
        errors = {}
        for peer in (opendp, diffprivlib):
            with contextlib.suppress(ImportError):
                errors[peer.__name__] = peer(names, columns, given.draws)
        for trust in ("central", "aggregate", "local"):
            few = max(given.draws // 50, 2) if trust == "local" else given.draws
            errors[trust] = ours(names, columns, trust, few)
        for name in names:
            row = {
                "queries": len(names),
                "query": name,
                **{key: each[name] for key, each in errors.items()},
            }
            best = min([row[p.__name__] for p in (opendp, diffprivlib) if p.__name__ in row] or [1])
            rows.append({**row, "ratio": row["central"] / best})
            print(rows[-1], flush=True)
    save("statistics_peers", {
        "records": given.records, "epsilon": EPSILON, "delta": DELTA, "draws": given.draws,
        "rows": rows,
    })  # fmt: skip


if __name__ == "__main__":
    main()
