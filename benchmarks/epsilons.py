"""Epsilons of stored runs, as stated and as proven now: python benchmarks/epsilons.py [--gallery]

Nothing is trained: a run's noise is in its record, or follows from the epsilon that Rényi
divergences gave it then (in the gallery, whose results and pages `--gallery` writes again). A run
that is repeated is calibrated with today's account.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import private_training as training
from planned import COHORT, DELTA, DIMENSION
from results import save, stored
from scipy.optimize import root_scalar
from tight import demo

import randquant as rq
from randquant._internal import sealed
from randquant.aggregation.registry import update_mechanism
from randquant.mechanisms.tuning import UpdateSetting
from randquant.papers.frontiers import GAUSSIAN, Kind
from randquant.papers.gallery.gallery import build
from randquant.papers.imvu.training import IMVU, MVU, OPTIMUM, OPTIMUM_2, SIGN, WIDER
from randquant.planning.tuning.update import tuned_mechanism, update_family
from randquant.privacy.accounting.accountant import _by_renyi, account
from randquant.privacy.accounting.examples import of_one_example
from randquant.privacy.accounting.gaussian import gaussian_noise
from randquant.privacy.accounting.release import Release

GALLERY = Path(__file__).parents[1] / "docs" / "gallery" / "results"
EXPERIMENTS = {
    "imvu-fig2": (39_700, None, {k.label: k for k in (IMVU, MVU, SIGN, GAUSSIAN, OPTIMUM)}),
    "imvu-fig4": (50_226, 19, {k.label: k for k in (IMVU, *WIDER, GAUSSIAN, OPTIMUM, OPTIMUM_2)}),
}
"""Experiments of the gallery that Rényi divergences calibrated to an epsilon of one round,
`zero_out`: their coordinates, the fewest examples of an update where one of them is protected, and
mechanisms."""

CALIBRATED = " Its noise was calibrated by Rényi divergences; today's account proves less for it."

Row = tuple[str, float, Release, float]
"""A name, the epsilon that was stated, the release, and delta."""


def trained() -> Iterator[Row]:
    """Runs of private_training.py that protect."""
    for row in stored("private_training")["runs"]:
        if row["epsilon"] is None:
            continue
        digits = row["dataset"] == "digits"
        config = training.DIGITS if digits else training.FASHION
        plain = row["mechanism"] == "gaussian"
        mechanism = update_mechanism(
            row["mechanism"], row["parameters"], trust=None if plain else "aggregate",
            cohort=None if plain else config.cohort,
            clip_norm=None if plain else config.clip_norm,
        )  # fmt: skip
        release = mechanism.release(650 if digits else 50_890, row["rounds"], row["neighboring"])
        assert release is not None
        name = f"private_training: {row['dataset']}, {row['neighboring']}, {row['mechanism']}"
        yield name, row["epsilon"], release, training.DELTA


def others() -> Iterator[Row]:
    """The demo, on Flower too; the planned run; the notebook's."""
    release = demo()
    assert release is not None
    yield "flower_simulation: make demo", stored("flower_simulation")["epsilon"], release, 1e-5
    row = stored("planned")
    mechanism = update_mechanism(
        row["mechanism"], row["parameters"], trust="aggregate", cohort=COHORT, clip_norm=1.0
    )
    release = mechanism.release(DIMENSION, row["participations"])
    assert release is not None
    yield "planned", row["planned_epsilon"], release, DELTA
    row = stored("fashion_mnist")
    channel = rq.ChannelRelease(
        rq.rqm(**row["parameters"]), row["dimension"], row["participations"]
    )
    yield "fashion_mnist", row["guarantee"]["epsilon"], channel, row["guarantee"]["delta"]


def gallery() -> Iterator[Row]:
    """Whole updates of the gallery, whose noise was calibrated by Rényi divergences."""
    known = stored("epsilons")["runs"]
    for experiment, (dimension, examples, kinds) in EXPERIMENTS.items():
        for row in json.loads((GALLERY / f"{experiment}.json").read_text())["guarantees"]:
            label = row["what"].partition(", epsilon ")[0]
            if label in kinds:
                name = f"{experiment}: {row['what']}"
                stated = known[name]["stated"] if name in known else row["certified"]
                release = _of_noise(kinds[label], dimension, examples, stated)
                yield name, stated, release, 1e-5


def _of_noise(kind: Kind, dimension: int, examples: int | None, stated: float) -> Release:
    """One round of a mechanism, with the noise to which Rényi divergences gave this epsilon."""
    setting = UpdateSetting(dimension, 1, min(kind.bits, 24), "local", 1.0, "zero_out")
    family = update_family(kind.mechanism, setting)

    def release(log_noise: float) -> Release:
        noise = min(max(family.start(math.exp(log_noise)), family.reach[0]), family.reach[1])
        mechanism = tuned_mechanism(kind.mechanism, setting, family.parameters(noise))
        found = mechanism.release(dimension, 1, "zero_out")
        assert found is not None
        known = found if examples is None else of_one_example(found, examples)
        assert known is not None
        return known

    def above(log_noise: float) -> float:
        return math.log(_by_renyi([release(log_noise)], 1e-5)[0] / stated)

    at = _root(above, math.log(gaussian_noise(stated, 1e-5) / (examples or 1)))
    # Of noise six digits are kept: never more than there was.
    return release(at if above(at) >= 0 else at - 1e-6)


def _root(falling: Callable[[float], float], near: float) -> float:
    found = root_scalar(falling, bracket=(near - 0.5, near + 0.5), xtol=1e-12)
    return float(found.root)


def restate(found: dict[str, dict[str, float]]) -> None:
    """Write what is proven now into the gallery's results, and draw its pages."""
    for experiment in EXPERIMENTS:
        path = GALLERY / f"{experiment}.json"
        data, _ = sealed.unseal(path.read_bytes())
        now: dict[float, float] = {}
        for row in data["guarantees"]:
            run = found.get(f"{experiment}: {row['what']}")
            if run is None or run["now"] >= row["certified"] * (1 - 1e-6):
                continue
            # Equal noise under two names has one epsilon, before and now.
            assert now.setdefault(row["certified"], run["now"]) == run["now"]
            row["why"] = row["why"].removesuffix(CALIBRATED) + CALIBRATED
        text = json.dumps(sealed.seal(_replaced(data, now)), separators=(",", ":"))
        path.write_text(text + "\n")
    build(GALLERY.parent)


def _replaced(value: Any, now: dict[float, float]) -> Any:
    """JSON with other numbers."""
    if isinstance(value, dict):
        return {name: _replaced(each, now) for name, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, now) for each in value]
    return now.get(value, value) if isinstance(value, float) else value


if __name__ == "__main__":
    found = {}
    print(f"{'run':66} {'stated':>12} {'now':>12} {'attack':>12}")
    for name, stated, release, delta in (*others(), *trained(), *gallery()):
        guarantee = account([release], delta)
        found[name] = {"stated": stated, "now": guarantee.epsilon, "attack": guarantee.lower}
        print(f"{name:66} {stated:12.6g} {guarantee.epsilon:12.6g} {guarantee.lower:12.6g}")
    save("epsilons", {"runs": found})
    if "--gallery" in sys.argv:
        restate(found)
