"""Every setting of `rq.train` beside every other: what a run prints is what its settings cost.

Few runs, of two coordinates to train, in which each pair of values meets; each figure is compared
with `tests/figures.py`, which knows the settings and nothing of the product.
"""

from __future__ import annotations

import dataclasses
import inspect
import math

import figures
import numpy as np
import pytest
import stores
import torch
from torch import nn
from torch.nn import functional

import randquant as rq
from randquant.aggregation import AdditiveMechanism, CentralGaussian, LocalGaussian
from randquant.channels import Key
from randquant.privacy import Guarantee
from randquant.privacy.accounting import accountant
from randquant.training import schedule

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

NOISE, FEATURES, FEWEST, MOST = 4.0, 3, 4, 5
"""Noise multiplier; features of an example; fewest and most examples of a client."""

SPENT = {"epsilon": 0.25, "delta": 3e-6, "releases": 7}
SHARE = 0.125
BITS = 14

SETTINGS = {  # by name of each value: what is given; the first is usual
    # of train
    "mechanism": {"local": LocalGaussian, "sums": AdditiveMechanism, "models": CentralGaussian},
    "clients": {"6": 6, "12": 12},
    "epsilon": {"none": None, "ample": 40.0, "one less": "one less"},
    "delta": {"1e-5": 1e-5, "1e-3": 1e-3},
    "rounds": {"4": 4, "6": 6},
    "cohort": {"3": 3, "4": 4},
    "seed": {"0": 0, "secret": None},
    "loss": {"plain": "plain", "nll": "nll"},
    "test": {"none": None, "some": "some"},
    # of Privacy
    "unit": {"client": "client", "example": "example"},
    "neighboring": {"replace_one": "replace_one", "zero_out": "zero_out"},
    "clip_norm": {"1": 1.0, "0.5": 0.5},
    "coordinates": {"all": None, "3": 3},
    "sampling": {"fixed": "fixed", "poisson": "poisson"},
    "max_participations": {"even": None, "5": 5},
    "numbers": {"none": (), "one": ("loss:0:4",), "two": ("loss:0:4", "num-examples:0:9")},
    "weighted_by": {"none": None, "examples": "num-examples"},
    "spent": {"none": None, "some": SPENT},
    # of Local
    "standardize": {"none": None, "some": (-3.0, 3.0)},
    "parts": {"all": None, "weight": "weight"},
    "frozen": {"none": None, "bias": "bias"},
    "learning_rate": {"usual": None, "0.1": 0.1},
    "epochs": {"usual": None, "2": 2},
    "batch": {"all": None, "2": 2},
    # of Server
    "checkpoint_every": {"5": 5, "1": 1},
}
APART = {
    "model": "it has dimensions of its own by `parts` and `frozen`", "progress": "shows a bar",
    "trust": "of a mechanism of one's own it is the mechanism's: see `call`",
    "local": "its fields are here", "server": "its fields are here", "privacy": "its fields here",
    "folder": "where files are: `test_settings_reach.py`",
    "bits": "of a mechanism that is planned: `test_plan_product.py`",
    "noise": "the same, and `test_helper_noise.py`",
    "population": "of a function of clients: `test_read_clients.py`",
    "buffers": "of models with running statistics: `test_settings_reach.py`",
    "public": "the same", "columns": "where data are: the same", "device": "the same",
    "threads": "the same", "together": "the same", "options": "of an optimiser: the same",
    "optimizer": "torch's own take seconds to import: the same",
    "evaluate_every": "the same", "on_round": "the same",
    "baseline": "a run of its own: `test_federated.py`",
}  # fmt: skip
"""Settings without a row, and why."""

DRAW = torch.Generator().manual_seed(0)
EXAMPLES = [
    (x[: FEWEST if k == 1 else MOST], (x[:, 0] > 0).long()[: FEWEST if k == 1 else MOST])
    for k, x in enumerate(torch.randn(12, MOST, FEATURES, generator=DRAW))
]


def plain(output, targets):
    """No loss that is known: nothing is tried with it."""
    return functional.cross_entropy(output, targets)


def nll(output, targets):
    return functional.nll_loss(functional.log_softmax(output, -1), targets)


def test_every_setting_has_a_row_or_a_reason():
    named = set(inspect.signature(rq.train).parameters)
    for kind in (rq.Local, rq.Server, rq.Privacy):
        named |= {field.name for field in dataclasses.fields(kind)}
    assert not SETTINGS.keys() & APART.keys()
    assert SETTINGS.keys() | APART.keys() == named


def allowed(row):
    """Settings that go together; that others are refused is tested below."""
    models, example = row["mechanism"] == "models", row["unit"] == "example"
    joined = row["numbers"] != "none"
    return not (
        (models and (example or row["max_participations"] != "even"))
        or (models and row["standardize"] != "none")
        or (example and (joined or row["learning_rate"] != "usual" or row["epochs"] != "usual"))
        or (row["weighted_by"] != "none" and row["numbers"] != "two")
        or (row["coordinates"] != "all" and row["mechanism"] != "sums")
        or (row["sampling"] == "poisson" and row["mechanism"] == "sums")
        or (row["sampling"] == "poisson" and row["max_participations"] != "even")
        or (row["standardize"] != "none" and row["epsilon"] != "ample")
        or (row["standardize"] != "none" and row["neighboring"] != "replace_one")
        or (row["epsilon"] == "one less" and _once(row))
        or (row["seed"] == "secret" and _by_key(row))
        or (row["mechanism"] == "models" and row["spent"] == "some" and example)
        or (row["parts"] != "all" and row["frozen"] != "none")
        or (row["epochs"] != "usual" and row["learning_rate"] == "usual" and example)
    )


def _once(row):
    """Whether each client is called once only, so that there is nothing less."""
    places = value(row, "rounds") * value(row, "cohort")
    return row["mechanism"] != "models" and places <= value(row, "clients")


def _by_key(row):
    """Whether who takes part how often, or when one has enough, follows from the key only."""
    unequal = row["sampling"] == "poisson" or row["max_participations"] != "even"
    return unequal or row["epsilon"] == "one less"


REFUSED = {
    ("models", "example"): {"mechanism": "models", "unit": "example"},
    ("models", "cap"): {"mechanism": "models", "max_participations": "5"},
    ("models", "standardize"): {"mechanism": "models", "standardize": "some", "epsilon": "ample"},
    ("example", "numbers"): {"unit": "example", "numbers": "one"},
    ("example", "rate"): {"unit": "example", "learning_rate": "0.1"},
    ("weight", "no numbers"): {"weighted_by": "examples"},
    ("weight", "another number"): {"weighted_by": "examples", "numbers": "one"},
    ("poisson", "sums"): {"sampling": "poisson", "mechanism": "sums"},
    ("poisson", "cap"): {"sampling": "poisson", "max_participations": "5"},
    ("standardize", "no epsilon"): {"standardize": "some"},
    ("standardize", "zero_out"): {
        "standardize": "some",
        "neighboring": "zero_out",
        "epsilon": "ample",
    },
}
"""Pairs of settings that do not go together; that `coordinates` are the mechanism's is below."""


def value(row, name):
    return SETTINGS[name][row[name]]


def mechanism_of(row):
    norm, kind = value(row, "clip_norm"), value(row, "mechanism")
    if kind is LocalGaussian:
        return LocalGaussian(norm, NOISE)
    if kind is CentralGaussian:
        return CentralGaussian(None, NOISE, norm)
    return AdditiveMechanism("skellam", norm, NOISE, 2, BITS, coordinates=value(row, "coordinates"))


TRUST = {"local": "local", "sums": "aggregate", "models": "model"}


def spent_of(row):
    if row["spent"] == "none":
        return None
    return Guarantee(
        SPENT["epsilon"], SPENT["delta"], row["neighboring"], TRUST[row["mechanism"]], math.inf,
        SPENT["releases"], unit=row["unit"],
    )  # fmt: skip


def call(row, folder):
    """What `train` is called with."""
    limit = value(row, "epsilon")
    return {
        "loss": {"plain": plain, "nll": nll}[row["loss"]],
        "test": EXAMPLES[0] if value(row, "test") else None,
        "epsilon": cost(row, most(row) - 0.5) if limit == "one less" else limit,
        "mechanism": mechanism_of(row), "progress": False, "folder": folder,
        "trust": TRUST[row["mechanism"]],
        **{name: value(row, name) for name in ("delta", "rounds", "cohort", "seed")},
        "privacy": rq.Privacy(
            spent=spent_of(row),
            **{name: value(row, name) for name in (
                "unit", "neighboring", "clip_norm", "sampling", "max_participations", "numbers",
                "weighted_by",
            )},
        ),
        "local": rq.Local(
            standardize=value(row, "standardize") and rq.Standardize(
                *value(row, "standardize"), share=SHARE),
            **{name: value(row, name) for name in (
                "parts", "frozen", "learning_rate", "epochs", "batch")},
        ),
        "server": rq.Server(checkpoint_every=value(row, "checkpoint_every")),
    }  # fmt: skip


def trained(row, folder):
    torch.manual_seed(0)
    clients = EXAMPLES[: value(row, "clients")]
    return rq.train(nn.Linear(FEATURES, 2), clients, **call(row, folder))


# What must come out.


def calls(row):
    """(rounds, clients) how often each client has been called after so many rounds."""
    population, cohort = value(row, "clients"), value(row, "cohort")
    rounds, key = value(row, "rounds"), Key.from_seed(0)
    cap = value(row, "max_participations")
    if row["sampling"] == "poisson":
        drawn = [schedule.sample_poisson(population, cohort / population, n, key)
                 for n in range(1, rounds + 1)]  # fmt: skip
    elif row["mechanism"] == "models":
        drawn = [schedule.sample_hidden(population, cohort, n, key)
                 for n in range(1, rounds + 1)]  # fmt: skip
    else:
        balanced = -(-rounds * cohort // population) if cap is None else cap
        drawn = schedule.capped_cohorts(
            population, cohort, rounds, max_participations=balanced, key=key
        )
    seen = np.zeros((rounds + 1, population), int)
    for n, each in enumerate(drawn):
        seen[n + 1] = seen[n]
        seen[n + 1, each] += 1
    return seen


def most(row):
    """What is accounted if nothing ends the run: rounds of a client, or of hidden cohorts."""
    if row["mechanism"] == "models":
        return value(row, "rounds")
    return int(calls(row)[-1].max())


def own_cost(row, count, delta):
    """Epsilon of so many rounds of the mechanism alone; between two, of the mean of both."""
    if count != int(count):
        return (own_cost(row, int(count), delta) + own_cost(row, int(count) + 1, delta)) / 2
    count, neighboring = int(count), row["neighboring"]
    if row["mechanism"] == "models":
        reach = 1 / NOISE
        worlds = {
            ("replace_one", "fixed"): ((2 * reach, 0.0), (0.0, 0.0)),
            ("replace_one", "poisson"): ((reach, 0.0), (-reach, 0.0)),
            ("zero_out", "fixed"): ((2 * reach, 0.0), (reach, 0.0)),
            ("zero_out", "poisson"): ((reach, 0.0), (0.0, 0.0)),
        }[neighboring, row["sampling"]]
        rate = value(row, "cohort") / value(row, "clients")
        return figures.of_mixture(*worlds, rate, count, delta)
    examples = None
    if row["unit"] == "example":
        examples = min(FEWEST, value(row, "batch") or FEWEST)
    norm, sigma = value(row, "clip_norm"), NOISE * value(row, "clip_norm")
    distance = figures.apart(norm, neighboring, examples)
    if row["coordinates"] != "all":
        sent = norm * math.sqrt(value(row, "coordinates") / padded(row))
        sigma = NOISE * sent
        distance = min(distance, figures.apart(sent, neighboring))
    return figures.of_gaussian(count * (distance / sigma) ** 2, delta)


def before(row):
    """Epsilon and delta before the first round: what was spent, and what standardises."""
    epsilon, delta, table = 0.0, 0.0, None
    if row["spent"] == "some":
        epsilon, delta = SPENT["epsilon"], SPENT["delta"]
    if row["standardize"] == "some":
        table = SHARE * (value(row, "epsilon") - epsilon), SHARE * (value(row, "delta") - delta)
        epsilon, delta = epsilon + table[0], delta + table[1]
    return epsilon, delta


def cost(row, count):
    """Epsilon of so many rounds, with all that comes before."""
    epsilon, delta = before(row)
    return epsilon + own_cost(row, count, value(row, "delta") - delta)


def sent_size(row):
    """Coordinates of what is sent."""
    trained = 2 * FEATURES + 2
    if row["parts"] != "all" or row["frozen"] != "none":
        trained -= 2
    return trained + len(value(row, "numbers"))


def padded(row):
    return 1 << (sent_size(row) - 1).bit_length()


def releases(row, count):
    """Single-coordinate releases, with those before."""
    size = sent_size(row)
    if row["mechanism"] == "sums":
        size = value(row, "coordinates") or padded(row)
    # A table: of each feature how many have it, their sum and their squares' sum.
    table = 3 * FEATURES if row["standardize"] == "some" else 0
    return size * count + SPENT["releases"] * (row["spent"] == "some") + table


QUICKLY = {"local": 0.01, "sums": 0.05, "models": 0.6}
"""The same of the figure after a round, which is found in milliseconds."""

LOOSE = {"local": 1e-9, "sums": 0.02, "models": 0.03}
"""How much above the exact figure one may be: of integer noise for its grid, of hidden cohorts for
the accuracy of the oracle and of the bound."""


def loose(row):
    # Means of gradients are few steps of the grid apart, and rounding adds some.
    coarse = row["mechanism"] == "sums" and row["unit"] == "example"
    return 0.2 if coarse else LOOSE[row["mechanism"]]


@pytest.fixture(autouse=True)
def no_attacks(monkeypatch):
    """Lower ends have tests of their own, and take as long as all else here."""
    monkeypatch.setattr(accountant, "attacked_epsilon", lambda *_: 0.0, raising=False)


def declared(row):
    """(rounds, participations of a client) that a run declares."""
    seen, accounted = calls(row), most(row)
    if row["epsilon"] == "one less":
        accounted -= 1
        if row["mechanism"] == "models":
            seen = seen[: accounted + 1]
        else:
            seen = seen[seen.max(axis=1) <= accounted]
    return len(seen) - 1, int(seen[-1].max())


ROWS = figures.rows({name: list(values) for name, values in SETTINGS.items()}, allowed)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: figures.changed(row, SETTINGS))
def test_a_run_prints_what_its_settings_cost(row, tmp_path):
    run = trained(row, tmp_path / "run")
    found, (rounds, participations) = run.guarantee, declared(row)
    hidden = row["mechanism"] == "models"
    accounted = rounds if hidden else participations
    limit = call(row, None)["epsilon"]
    assert run.config.rounds == value(row, "rounds")
    assert len(run.history) == run.record.rounds == rounds
    if hidden and row["seed"] == "secret":  # drawn with a key that nobody knows
        participations = run.summary.participations
    assert run.summary.participations == participations
    assert found.delta == value(row, "delta")
    assert (found.neighboring, found.unit) == (row["neighboring"], row["unit"])
    assert found.trust == TRUST[row["mechanism"]]
    assert (found.hidden or hidden) == hidden
    assert found.simulated == (row["seed"] == "0")
    assert found.releases == releases(row, accounted)
    exact = cost(row, accounted)
    least = exact * (1 - 1e-3 * (row["mechanism"] != "local")) - 0.05 * table_part(row)
    assert least - 1e-9 <= found.epsilon <= exact * (1 + loose(row)) + 1e-9
    assert limit is None or found.epsilon <= limit
    _check_before(row, run)
    _check_files(row, run, tmp_path / "run", accounted, exact)
    _check_beside(row, run, participations)
    assert run.upload_bytes == upload(row)


def table_part(row):
    """What a table may cost less than its share, relatively."""
    return before(row)[0] if row["standardize"] == "some" else 0.0


def upload(row):
    if row["mechanism"] == "sums":
        return 40 + math.ceil((value(row, "coordinates") or padded(row)) * BITS / 8)
    return 4 * sent_size(row)


def _check_before(row, run):
    spent, (epsilon, delta) = run.summary.spent, before(row)
    assert (spent is None) == (epsilon == 0)
    if spent is not None:
        assert epsilon - 0.05 * table_part(row) <= spent.epsilon <= epsilon * (1 + 1e-9)
        assert math.isclose(spent.delta, delta, rel_tol=1e-9)
        assert (spent.neighboring, spent.unit) == (row["neighboring"], row["unit"])


def _check_files(row, run, folder, accounted, exact):
    """What is on the disk before anything is sent, and after each round."""
    sent = stores.read_sent(folder)
    assert sent.declared == sent.round == len(run.history)
    assert sent.epsilon >= exact * (1 - 1e-3) - 0.05 * table_part(row)
    assert sent.epsilon <= exact * (1 + loose(row)) * (1 + QUICKLY[row["mechanism"]])
    assert (sent.delta, sent.neighboring) == (value(row, "delta"), row["neighboring"])
    assert sent.asked == (row["standardize"] == "some")
    for number, each in enumerate(run.history, 1):
        count = number if row["mechanism"] == "models" else each.participations
        known = cost(row, count)
        assert each.epsilon >= known * (1 - 1e-3) - 0.05 * table_part(row)
        assert each.epsilon <= known * (1 + loose(row)) * (1 + QUICKLY[row["mechanism"]]) + 1e-9
        if row["seed"] == "0":
            assert each.participations == calls(row)[number].max()
        assert (each.delta, each.neighboring) == (value(row, "delta"), row["neighboring"])


def _check_beside(row, run, participations):
    """A whole client's figure beside one of an example, or of hidden cohorts."""
    whole = run.beside
    needed = row["unit"] == "example" or row["mechanism"] == "models"
    assert (whole is not None) == (needed and run.summary.spent is None)
    if whole is None:
        return
    assert (whole.unit, whole.delta) == ("client", value(row, "delta"))
    assert whole.neighboring == row["neighboring"]
    assert not whole.hidden
    assert whole.simulated == (row["seed"] == "0")
    square = participations * (figures.radii(row["neighboring"]) / NOISE) ** 2
    exact = figures.of_gaussian(square, value(row, "delta"))
    assert exact * (1 - 1e-3) <= whole.epsilon <= exact * (1 + LOOSE["sums"])


@pytest.mark.parametrize("pair", REFUSED, ids=" and ".join)
def test_settings_that_do_not_go_together_are_refused_in_one_sentence(pair, tmp_path):
    usual = {name: next(iter(values)) for name, values in SETTINGS.items()}
    row = {**usual, **REFUSED[pair]}
    assert not allowed(row)
    with pytest.raises(ValueError, match=r"^Expected [^\n]*[.:] ?[^\n]*\.$"):
        trained(row, tmp_path / "run")
    assert not (tmp_path / "run").exists()
