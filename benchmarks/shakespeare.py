"""Shakespeare's roles, trained privately: python benchmarks/shakespeare.py DATA_DIR

The largest tenth of the roles is public: transformers are trained on them without privacy, in few
passes and in many, and kept in --cache. The other roles are clients, all of them in every round. An
adapter of 3,840 parameters, all linear layers or the whole model are trained on them: with one bit
a coordinate, with a tenth of a bit, with Gaussian noise on the exact sum, with other mechanisms at
the same guarantee, and without privacy; for what can be won at most, also by Adam on all clients'
text in one place. Rows are stored as they are done, the most telling first, and stored rows are not
run again; `shakespeare_rows.py` lists them, with their settings. Without DATA_DIR the picture is
drawn again.
"""

import argparse
import copy
import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import shakespeare_picture
import torch
from results import add, stored
from shakespeare_picture import NAME, task
from shakespeare_rows import (
    BATCH,
    DAMPING,
    DELTA,
    EPSILONS,
    PLAIN_LAYERS,
    PLAIN_RANK,
    POOLED_PASSES,
    POOLED_RATES,
    PUBLIC_RATES,
    ROUNDS,
    SETTINGS,
    TENTH,
    TENTH_RATE,
    Wanted,
    queue,
)  # fmt: skip
from torch import nn

import randquant as rq
from randquant.aggregation import ClippedSGD, UpdateMechanism, update_mechanism
from randquant.mechanisms import UpdateSetting
from randquant.planning import calibrate, gaussian_multiplier, tune_update
from randquant.training import Run
from randquant_papers.text.adapters import with_adapters
from randquant_papers.text.directions import public_directions, with_directions
from randquant_papers.text.evaluation import ClientScores, evaluate


class Task(NamedTuple):
    """What is trained: a model, clients' examples, and windows to test on, by client.

    `public` are the public roles' windows, for more of the training that the model had.
    """

    model: nn.Module
    clients: list
    tested: list
    public: Sequence = ()


def pretrained(found: task.Roles, passes: int, cache: Path) -> nn.Module:
    """A public model; 24 passes take ten minutes of one core, once."""
    kept = cache / f"pretrained-{passes}.pt"
    return task.pretrained(found.public, passes, kept, PUBLIC_RATES[passes])


def prepared(part: str, found: task.Roles, model: nn.Module, damping: float = DAMPING) -> Task:
    """Adapters see what the layers before them give for each window, which is computed once."""
    if part == "full":
        return Task(model, found.clients, found.clients_test, found.public)
    if part == "linear layers":
        shown = task.shown(found.public)
        directions = public_directions(model, None, None, *shown, damping=damping)
        return Task(with_directions(model, directions), found.clients, found.clients_test)
    if part == "adapters":
        small = task.adapted(model, found.public)
    else:
        torch.manual_seed(0)
        small = with_adapters(model, PLAIN_RANK, PLAIN_LAYERS)
    states = (task.below(small, windows) for windows in (found.clients, found.clients_test))
    return Task(task.Top(small), *states)


def protected(wanted: Wanted, dimension: int, cohort: int) -> UpdateMechanism | None:
    """The mechanism that meets the row's epsilon for `cohort` clients; None for train's own."""
    clip_norm = SETTINGS[wanted.passes][wanted.part].clip_norm
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

    return gaussian(clip_norm, wanted.epsilon, dimension)


def gaussian(clip_norm: float, epsilon: float, dimension: int, share: float = 1) -> UpdateMechanism:
    """Noise on the exact sum that meets epsilon; `share` of it where others would add the rest."""

    def build(noise_multiplier: float) -> UpdateMechanism:
        own = {"clip_norm": clip_norm, "noise_multiplier": noise_multiplier}
        return update_mechanism("gaussian", own)

    found = calibrate(build, epsilon, DELTA, dimension, ROUNDS).mechanism
    return found if share == 1 else build(share * found.noise_multiplier)


def rate(wanted: Wanted) -> float:
    """The server's step; with the noise of many clients as without privacy.

    A mean of a tenth of the coordinates is scaled by ten, its noise in length by the root of that.
    """
    chosen = SETTINGS[wanted.passes][wanted.part]
    found = chosen.rate if wanted.times > 1 else chosen.rates.get(wanted.epsilon, chosen.rate)
    return found * TENTH_RATE if wanted.mechanism == "tenth of a bit" else found


def own_mechanism(wanted: Wanted) -> dict:
    """The arguments with which train calibrates one bit, or a tenth of a bit, itself."""
    tenth = TENTH if wanted.mechanism == "tenth of a bit" else None
    clip_norm = SETTINGS[wanted.passes][wanted.part].clip_norm
    privacy = rq.Privacy(clip_norm=clip_norm, coordinates=tenth)
    return {"epsilon": wanted.epsilon, "privacy": privacy}


def trained(of: Task, rate: float, seed: int, **how) -> Run:
    """One run; each role is asked in every round and sends the gradient on eight windows."""
    return rq.train(
        of.model,
        of.clients,
        rounds=ROUNDS,
        cohort=len(of.clients),
        local=rq.Local(batch=BATCH, learning_rate=0, threads=1),
        server=rq.Server(learning_rate=rate),
        delta=DELTA,
        seed=seed,
        progress=False,
        **how,
    )


def row(wanted: Wanted, of: Task, before: ClientScores) -> dict:
    """A run, and the scores of its model on each client's test windows."""
    start = time.process_time()
    dimension = sum(each.numel() for each in of.model.parameters() if each.requires_grad)
    cohort = wanted.times * len(of.clients)
    if wanted.mechanism in ("pooled", "public again"):
        windows = of.clients if wanted.mechanism == "pooled" else of.public
        model = pooled(of.model, windows, POOLED_RATES[wanted.part])
        guarantee, upload = None, None
    else:
        mechanism = protected(wanted, dimension, cohort)
        many = None
        if wanted.times > 1:
            # Each role stands for `times` clients that send the same: their sum with this noise is
            # `times` the sum of one of each with so much less. The guarantee is that of the many.
            many = rq.account([mechanism.release(dimension, ROUNDS)], DELTA)
            share = 1 / wanted.times
            mechanism = gaussian(mechanism.clip_norm, wanted.epsilon, dimension, share)
        how = {"mechanism": mechanism} if mechanism else own_mechanism(wanted)
        run = trained(of, rate(wanted), wanted.seed, **how)
        model, guarantee, upload = run.model, many or run.guarantee, run.upload_bytes
    after = evaluate(model, of.tested)
    return {
        **wanted._asdict(),
        "clients": cohort,
        "dimension": dimension,
        "guarantee": guarantee,
        "upload_bytes": upload,
        "accuracy": mean(after.accuracy, after),
        "bits": mean(after.bits, after),
        "accuracy_before": mean(before.accuracy, before),
        "bits_before": mean(before.bits, before),
        "clients_better": float(np.mean(after.bits < before.bits)),
        "bits_by_client": np.quantile(after.bits, [0.1, 0.5, 0.9]).tolist(),
        "moved": float(np.linalg.norm(weights(model) - weights(of.model))),
        "processor_seconds": time.process_time() - start,
    }


def pooled(model: nn.Module, windows: Sequence, rate: float) -> nn.Module:
    """All windows in one place, Adam, some passes: no privacy at all."""
    model = copy.deepcopy(model)
    pairs = [tuple(map(torch.as_tensor, pair)) for pair in windows]
    features, targets = map(torch.cat, zip(*pairs, strict=True))
    own = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.Adam(own, lr=rate)
    steps = POOLED_PASSES * -(-len(targets) // 64)
    slower = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    draw = torch.Generator().manual_seed(0)
    for _ in range(POOLED_PASSES):
        for rows in torch.randperm(len(targets), generator=draw).split(64):
            loss = nn.functional.cross_entropy(model(features[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            slower.step()
    return model


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
    settings = in_use()
    facts = {"settings": settings, "roles": {k: len(v) for k, v in found._asdict().items()}}
    kept = stored(NAME)
    same = {name for name, own in settings.items() if kept.get("settings", {}).get(name) == own}
    if same != set(settings):
        add(NAME, {"planned": planned(len(found.clients))})
    rows = [each for each in kept.get("rows", []) if named(each["part"], each["passes"]) in same]
    done = {Wanted(*(each[name] for name in Wanted._fields)) for each in rows}
    for (part, passes), group in itertools.groupby(
        (each for each in queue(seeds) if each not in done),
        key=lambda each: (each.part, each.passes),
    ):
        of = prepared(part, found, pretrained(found, passes, cache))
        before = evaluate(of.model, of.tested)
        for wanted in group:
            rows.append(row(wanted, of, before))
            print(rows[-1], flush=True)
            add(NAME, {**facts, "rows": rows})


def named(part: str, passes: int) -> str:
    """What settings are of."""
    return f"{part}, {passes} passes"


def in_use() -> dict[str, dict]:
    """What the rows of each part depend on: a part whose settings changed is run again."""
    found = {}
    for passes, parts in SETTINGS.items():
        common = {
            "epochs": passes, "public_rate": PUBLIC_RATES[passes], "rounds": ROUNDS, "batch": BATCH,
            "delta": DELTA, "tenth_rate": TENTH_RATE, "pooled_passes": POOLED_PASSES,
        }  # fmt: skip
        for part in (*parts, "plain adapters"):
            own = found[named(part, passes)] = {**common, "pooled_rate": POOLED_RATES.get(part)}
            if chosen := parts.get(part):
                own.update(chosen._asdict(), rates=[list(pair) for pair in chosen.rates.items()])
        found[named("linear layers", passes)]["damping"] = DAMPING
    return found


def planned(clients: int) -> list[dict]:
    """What the planner says of one bit beforehand."""
    said = []
    curves = (wanted for wanted in queue(1) if wanted.mechanism == "none")
    for passes, part in ((wanted.passes, wanted.part) for wanted in curves):
        chosen, plans = SETTINGS[passes][part], []
        for epsilon in EPSILONS:
            plan = rq.plan(
                chosen.dimension, clients, clients, ROUNDS, epsilon, DELTA,
                privacy=rq.Privacy(bits=1, clip_norm=chosen.clip_norm),
                mechanisms=["stochastic-rounding"],
            )  # fmt: skip
            noise = plan.entries[0].noise
            assert noise is not None
            plans.append({"epsilon": epsilon, "share": noise.share, "verdict": plan.verdict})
        said.append({
            "passes": passes, "part": part, "dimension": chosen.dimension, "plans": plans,
        })  # fmt: skip
        print(said[-1], flush=True)
    return said


def main() -> None:
    """Measure what is not stored, if there are data, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", type=Path, nargs="?")
    parser.add_argument("--cache", type=Path, default=Path("runs/shakespeare"))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.data_dir:
        measure(given.data_dir, given.cache, given.seeds)
    shakespeare_picture.draw()


if __name__ == "__main__":
    main()
