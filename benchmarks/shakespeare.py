"""Shakespeare's roles, trained privately: python benchmarks/shakespeare.py DATA_DIR

The largest tenth of the roles is public: a transformer is trained on them once, without privacy,
and kept in --cache. The other roles are clients, all of them in every round. Adapters of 3,840
parameters, or the whole model, are trained on them: with one bit a coordinate, with a tenth of a
bit, with Gaussian noise on the exact sum, with other mechanisms at the same guarantee, and without
privacy. Rows are stored as they are done, the most telling first, and stored rows are not run
again. `--choose CLIP_NORM RATE ...` shows what step sizes do to adapters on public roles' test
windows, on which the settings below were chosen. Without DATA_DIR the picture is drawn again.
"""

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import shakespeare_picture
import torch
from results import add, stored
from shakespeare_picture import NAME, task
from torch import nn

import randquant as rq
from randquant.aggregation.baselines import ClippedSGD
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import update_mechanism
from randquant.mechanisms.tuning import UpdateSetting
from randquant.planning.limits import gaussian_multiplier
from randquant.planning.tuning.update import tune_update
from randquant.privacy.accounting.calibration import calibrate
from randquant.training.evaluation import ClientScores, evaluate
from randquant.training.trained import Run

EPOCHS, ROUNDS, BATCH, DELTA = 3, 8, 8, 1e-5
CLIP_NORM, RATE = {"adapters": 0.05, "full": 0.8}, {"adapters": 20.0, "full": 0.03}
"""Chosen on public roles (`--choose`), for the server's step with the mean of clipped gradients."""

DIMENSIONS = {"adapters": 3840, "full": 115_536}
EPSILONS = (2.0, 4.0, 8.0, 16.0)
OTHERS = ("rqm", "mvu", "sparse-ternary", "imvu")
TENTH = 410
"""Of 4,096 rotated coordinates."""


class Wanted(NamedTuple):
    """A row: what is trained, how it is protected, and how many clients each role stands for."""

    part: str
    mechanism: str
    epsilon: float | None
    seed: int = 0
    times: int = 1


def queue(seeds: int) -> Iterator[Wanted]:
    """All rows, the most telling first."""
    for epsilon in (None, 8.0, 2.0):
        yield Wanted("adapters", "none" if epsilon is None else "one bit", epsilon)
    yield Wanted("adapters", "gaussian", 2.0, 0, 10)
    for epsilon in (2.0, 8.0):
        for name in ("gaussian", "tenth of a bit"):
            yield Wanted("adapters", name, epsilon)
    for epsilon in (4.0, 16.0):
        for name in ("one bit", "gaussian", "tenth of a bit"):
            yield Wanted("adapters", name, epsilon)
    yield Wanted("full", "none", None)
    for times in (1, 10, 100):
        yield Wanted("full", "gaussian", 8.0, 0, times)
    for epsilon in (8.0, 2.0):
        for name in OTHERS:
            yield Wanted("adapters", name, epsilon)
    for seed in range(1, seeds):
        yield Wanted("adapters", "none", None, seed)
        for name in ("one bit", "gaussian", "tenth of a bit"):
            for epsilon in EPSILONS:
                yield Wanted("adapters", name, epsilon, seed)
    for epsilon in (2.0, 4.0, 16.0):
        yield Wanted("full", "gaussian", epsilon)
    for epsilon in EPSILONS:
        yield Wanted("full", "one bit", epsilon)


class Task(NamedTuple):
    """What is trained: a model, clients' examples, and windows to test on, by client."""

    model: nn.Module
    clients: list
    tested: list


def prepared(part: str, found: task.Roles, model: nn.Module, seed: int) -> Task:
    """Adapters see what their frozen layers give for each window, which is computed once."""
    if part == "full":
        return Task(model, found.clients, found.clients_test)
    small = task.adapted(model, seed)
    states = (task.below(small, windows) for windows in (found.clients, found.clients_test))
    return Task(task.Top(small), *states)


def protected(wanted: Wanted, dimension: int, cohort: int) -> UpdateMechanism | None:
    """The mechanism that meets the row's epsilon for `cohort` clients; None for train's own."""
    clip_norm = CLIP_NORM[wanted.part]
    if wanted.epsilon is None:
        return ClippedSGD(clip_norm=clip_norm)
    if wanted.mechanism in ("one bit", "tenth of a bit"):
        return None
    if wanted.mechanism != "gaussian":
        setting = UpdateSetting(dimension, cohort, 4, "aggregate", clip_norm)
        multiplier = gaussian_multiplier(wanted.epsilon, DELTA, ROUNDS)
        deviation = multiplier * setting.distance / math.sqrt(cohort)
        tuned = tune_update(
            wanted.mechanism, setting, wanted.epsilon, DELTA, ROUNDS, deviation=deviation
        )
        return tuned.calibration.mechanism

    def build(noise_multiplier: float) -> UpdateMechanism:
        own = {"clip_norm": clip_norm, "noise_multiplier": noise_multiplier}
        return update_mechanism("gaussian", own)

    return calibrate(build, wanted.epsilon, DELTA, dimension, ROUNDS).mechanism


def trained(wanted: Wanted, of: Task, mechanism: UpdateMechanism | None) -> Run:
    """One run; each role is asked in every round and sends the gradient on eight windows."""
    own = {"mechanism": mechanism}
    if mechanism is None:
        tenth = TENTH if wanted.mechanism == "tenth of a bit" else None
        own = {"epsilon": wanted.epsilon, "clip_norm": CLIP_NORM[wanted.part], "coordinates": tenth}
    return rq.train(
        of.model, of.clients, rounds=ROUNDS, cohort=len(of.clients), batch=BATCH,
        local_learning_rate=0, learning_rate=RATE[wanted.part], delta=DELTA, seed=wanted.seed,
        threads=1, progress=False, **own,
    )  # fmt: skip


def row(wanted: Wanted, of: Task, before: ClientScores) -> dict:
    """A run, and the scores of its model on each client's test windows."""
    start = time.process_time()
    dimension = sum(each.numel() for each in of.model.parameters() if each.requires_grad)
    cohort = wanted.times * len(of.clients)
    mechanism = protected(wanted, dimension, cohort)
    guarantee = None
    if wanted.times > 1:
        # Each role stands for `times` clients that send the same: their sum with this noise is
        # `times` the sum of one of each with so much less. The guarantee is that of the many.
        (release,) = [mechanism.release(dimension, ROUNDS)]
        guarantee = rq.account([release], DELTA)
        less = mechanism.noise_multiplier / wanted.times
        own = {"clip_norm": mechanism.clip_norm, "noise_multiplier": less}
        mechanism = update_mechanism("gaussian", own)
    run = trained(wanted, of, mechanism)
    after = evaluate(run.model, of.tested)
    moved = weights(run.model) - weights(of.model)
    longest = ROUNDS * RATE[wanted.part] * CLIP_NORM[wanted.part]
    return {
        **wanted._asdict(),
        "clients": cohort,
        "dimension": dimension,
        "guarantee": guarantee or run.guarantee,
        "upload_bytes": run.upload_bytes,
        "accuracy": mean(after.accuracy, after),
        "bits": mean(after.bits, after),
        "accuracy_before": mean(before.accuracy, before),
        "bits_before": mean(before.bits, before),
        "clients_better": float(np.mean(after.bits < before.bits)),
        "bits_by_client": np.quantile(after.bits, [0.1, 0.5, 0.9]).tolist(),
        "moved": float(np.linalg.norm(moved)) / longest,
        "processor_seconds": time.process_time() - start,
    }


def weights(model: nn.Module) -> np.ndarray:
    """The trained parameters as one vector."""
    kept = [each.detach().reshape(-1) for each in model.parameters()]
    return torch.cat(kept).double().numpy()


def mean(values: np.ndarray, scores: ClientScores) -> float:
    """Over all predictions."""
    return float(np.average(values, weights=scores.examples))


def measure(data_dir: Path, cache: Path, seeds: int) -> None:
    """Run what is not stored yet, a row at a time."""
    found = task.roles(data_dir)
    model = task.pretrained(found.public, EPOCHS, cache / f"pretrained-{EPOCHS}.pt")
    settings = {
        "epochs": EPOCHS, "rounds": ROUNDS, "batch": BATCH, "delta": DELTA, "clip_norm": CLIP_NORM,
        "learning_rate": RATE,
    }  # fmt: skip
    facts = {"settings": settings, "roles": {k: len(v) for k, v in found._asdict().items()}}
    kept = stored(NAME)
    if "planned" not in kept:
        add(NAME, {"planned": planned(len(found.clients))})
    rows = kept.get("rows", []) if kept.get("settings") == settings else []
    done = {Wanted(*(each[name] for name in Wanted._fields)) for each in rows}
    for (part, seed), group in grouped(each for each in queue(seeds) if each not in done):
        of = prepared(part, found, model, seed)
        before = evaluate(of.model, of.tested)
        for wanted in group:
            rows.append(row(wanted, of, before))
            print(rows[-1], flush=True)
            add(NAME, {**facts, "rows": rows})


def planned(clients: int) -> list[dict]:
    """What the planner says beforehand: the run's noise over the longest sum of its means."""
    said = []
    for part, dimension in DIMENSIONS.items():
        for epsilon in EPSILONS:
            found = rq.plan(
                dimension, clients, clients, ROUNDS, epsilon, DELTA, bits=1,
                clip_norm=CLIP_NORM[part], mechanisms=["stochastic-rounding"],
            )  # fmt: skip
            noise = found.entries[0].noise
            assert noise is not None
            of = {"part": part, "dimension": dimension, "epsilon": epsilon}
            noises = {"round": noise.length, "share": noise.share}
            said.append({**of, **noises, "verdict": found.verdict, "advice": found.advice})
            print(said[-1], flush=True)
    return said


def grouped(rows: Iterator[Wanted]) -> Iterator[tuple[tuple[str, int], list[Wanted]]]:
    """Neighbouring rows that train the same thing."""
    group: list[Wanted] = []
    for each in rows:
        if group and (each.part, each.seed) != (group[0].part, group[0].seed):
            yield (group[0].part, group[0].seed), group
            group = []
        group.append(each)
    if group:
        yield (group[0].part, group[0].seed), group


def choose(data_dir: Path, cache: Path, clip_norm: float, rates: list[float]) -> None:
    """Adapters after rounds without privacy: no client's data, only public roles' test windows."""
    found = task.roles(data_dir)
    model = task.pretrained(found.public, EPOCHS, cache / f"pretrained-{EPOCHS}.pt")
    texts, following = task.pooled(found.public_test)
    order = np.random.default_rng(0).permutation(len(texts))[:3200]
    parts = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    windows = [(texts[part], following[part]) for part in parts]
    small = task.adapted(model)
    states = task.below(small, windows)
    of = Task(task.Top(small), states[:250], states[250:])
    gradients = [gradient(of.model, *each) for each in of.clients[:100]]
    lengths = [float(each.norm()) for each in gradients]
    total = float(torch.stack(gradients).mean(0).norm())
    print(f"lengths {np.quantile(lengths, [0.1, 0.5, 0.9])}, of their mean {total:.4g}")
    print(f"before: {evaluate(of.model, of.tested)}")
    for rate in rates:
        run = rq.train(
            of.model, of.clients, mechanism=ClippedSGD(clip_norm=clip_norm), rounds=ROUNDS,
            cohort=len(of.clients), batch=BATCH, local_learning_rate=0, learning_rate=rate, seed=0,
            threads=1, progress=False,
        )  # fmt: skip
        after = evaluate(run.model, of.tested)
        print(f"{clip_norm=} {rate=}: {mean(after.bits, after):.4f} bits", flush=True)


def gradient(model: nn.Module, states: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """A client's gradient as one vector."""
    trained = [each for each in model.parameters() if each.requires_grad]
    loss = nn.functional.cross_entropy(model(states), following)
    return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, trained)])


def main() -> None:
    """Measure what is not stored, or choose settings, or draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", type=Path, nargs="?")
    parser.add_argument("--cache", type=Path, default=Path("runs/shakespeare"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--choose", type=float, nargs="+", metavar=("CLIP_NORM", "RATE"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.choose:
        choose(given.data_dir, given.cache, given.choose[0], given.choose[1:])
        return
    if given.data_dir:
        measure(given.data_dir, given.cache, given.seeds)
    shakespeare_picture.draw()


if __name__ == "__main__":
    main()
