"""Four hospitals' accuracy against a patient's epsilon, beside central training.

python benchmarks/hospitals.py FOLDER [--seeds 10] measures with the .csv files of the heart-disease
data in FOLDER; without a folder the picture is drawn again from results/hospitals.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from performance_page import picture
from results import save, stored

import randquant as rq
from randquant.channels import Key
from randquant.planning import gaussian_multiplier
from randquant.privacy import account, run_release
from randquant.reports import Axis, line_chart
from randquant.rounds import ParameterFreeStep, Target

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples" / "hospitals"))

from hospital import FEATURES, SITES, accuracy, patients, split, step  # noqa: E402
from run import CLIP_NORM, DELTA  # noqa: E402

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
ROUNDS = 20


def trained(direction, deviation: float) -> np.ndarray:
    """Weights after ROUNDS steps from zero, as the controller takes them."""
    rule = ParameterFreeStep([(FEATURES,)], ROUNDS, CLIP_NORM, deviation / CLIP_NORM)
    weights, state = np.zeros(FEATURES, np.float32), rule.init()
    for _ in range(ROUNDS):
        weights, state = rule.step(weights, -direction(weights), state)
    return weights


def planned(epsilon: float, examples: int, trust: str):
    """The mechanism of `QuantizeController.for_target`, as `run.py` takes it."""
    sites = len(SITES)
    target = Target(epsilon, ROUNDS, sites, sites, DELTA, trust, rq.Privacy(), examples)
    return target.mechanism(FEATURES, lambda level, line: print(line))


def run(mechanism, summed, multiplier: float | None, cut: dict, seed: int) -> dict[str, float]:
    """Test accuracy of each way to train, on all hospitals' test patients together."""
    trains = [train for train, _ in cut.values()]
    pooled, test = (tuple(map(np.concatenate, zip(*part, strict=True))) for part in
                    (trains, [held for _, held in cut.values()]))  # fmt: skip
    chance = np.random.default_rng(seed)

    def private(mechanism):
        def direction(weights):
            number = len(pooled[1]) // len(trains)
            updates = [step(weights, *each, CLIP_NORM) / number for each in trains]
            payloads = [mechanism.encode(update, Key.generate()) for update in updates]
            return mechanism.mean(payloads, FEATURES)

        return direction, mechanism.expected_error(FEATURES).deviation(len(trains), 0.0)

    def central(weights):
        noise = chance.normal(0, multiplier * 2 * CLIP_NORM / len(pooled[1]), FEATURES)
        return step(weights, *pooled, CLIP_NORM) / len(pooled[1]) + noise

    if multiplier is None:
        ways = {
            "hospitals": (lambda w: step(w, *pooled, CLIP_NORM) / len(pooled[1]), 0.0),
            "central": (lambda w: step(w, *pooled, 1e6) / len(pooled[1]), 0.0),  # unclipped
        }
    else:
        ways = {
            "hospitals": private(mechanism),
            "sums": private(summed),
            "central": (central, multiplier * 2 * CLIP_NORM / len(pooled[1])),
        }
    return {name: accuracy(trained(*way), *test) for name, way in ways.items()}


def measured(folder: str, seeds: int) -> dict:
    data = {site: patients(folder, site) for site in SITES}
    cuts = [{site: split(*each, seed) for site, each in data.items()} for seed in range(seeds)]
    examples = {site: len(train[1]) for site, (train, _) in cuts[0].items()}
    rows = []
    for epsilon in (*EPSILONS, None):
        row, mechanism, summed, multiplier = {"epsilon": epsilon}, None, None, None
        if epsilon is not None:
            number = sum(examples.values()) // len(SITES)
            mechanism, summed = (planned(epsilon, number, each) for each in ("local", "aggregate"))
            multiplier = gaussian_multiplier(epsilon, DELTA, ROUNDS)
            release = mechanism.release(FEATURES, ROUNDS)
            row["patient"] = account(
                [run_release(mechanism, FEATURES, ROUNDS, examples=number)], DELTA
            ).epsilon
            row["hospital"] = account([release], DELTA).epsilon
            row["bytes"] = mechanism.upload_bytes(FEATURES)
        found = [run(mechanism, summed, multiplier, cut, seed) for seed, cut in enumerate(cuts)]
        for name in found[0]:
            scores = [each[name] for each in found]
            row[name] = {"mean": float(np.mean(scores)), "deviation": float(np.std(scores))}
        rows.append(row)
        print(row, flush=True)
    shared = {"rounds": ROUNDS, "seeds": seeds, "delta": DELTA, "examples": examples}
    return {**shared, "rows": rows}


def drawn(found: dict) -> str:
    """Accuracy against a patient's epsilon."""
    *private, plain = found["rows"]
    names = {
        "hospitals": "four hospitals, local trust", "central": "central, a trusted curator",
        "sums": "one sum of all, with a helper",
    }  # fmt: skip
    lines = []
    for colour, (name, label) in zip(("c1", "c2", "c3"), names.items(), strict=True):
        points = [(row["epsilon"], 100 * row[name]["mean"]) for row in private]
        lines.append((label, points, colour))
        if name not in plain:
            continue
        level = [(x, 100 * plain[name]["mean"]) for x, _ in points]
        lines.append((f"{label.split(',')[0]}, no privacy", level, f"{colour} dashed"))
    title = f"Test accuracy against a patient's epsilon (delta {found['delta']:g})"
    x, y = Axis("epsilon of one patient", log=True), Axis("accuracy in %")
    return picture(line_chart(title, lines, x, y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    if given.folder:
        save("hospitals", measured(given.folder, given.seeds))
    found = stored("hospitals")
    (ROOT / "docs" / "images" / "hospitals.svg").write_text(drawn(found))
    print("wrote docs/images/hospitals.svg")


if __name__ == "__main__":
    main()
