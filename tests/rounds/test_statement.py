"""The certificate file states what is released and nothing else; its examples are kept true."""

import dataclasses
import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import certificates
import jsonschema
import numpy as np
import pytest

import randquant as rq
from randquant.aggregation import AdditiveMechanism, SignSGD, gaussian
from randquant.cli import main
from randquant.mechanisms import NOISES, Skellam
from randquant.privacy import Guarantee, HiddenCohorts, gaussian_epsilon
from randquant.rounds import (
    RELEASE_KINDS,
    Offer,
    ReleaseTerms,
    RoundEvent,
    RunAccountant,
    Statement,
)

SCHEMA = json.loads((certificates.FOLDER.parent / "certificate-file.schema.json").read_text())
VALID = jsonschema.Draft202012Validator(SCHEMA)
EXAMPLES = {path.stem: path.read_text() for path in certificates.FOLDER.glob("*.json")}
PAGE = (certificates.FOLDER.parent / "certificate-file.md").read_text()


@pytest.fixture(scope="module")
def made():
    return certificates.made()


def figures(text):
    """The claims' epsilons, and everything else but the digest and the search's hints."""
    data = json.loads(text)
    epsilons = [float.fromhex(claim.pop("epsilon")) for claim in data["claims"]]
    orders = [claim.pop("order") for claim in data["claims"]]
    assert len(data.pop("digest")) == 64
    assert all(order == "inf" or float.fromhex(order) > 1 for order in orders)
    return epsilons, data


def test_the_examples_are_what_is_written_today(made):
    assert made.keys() == EXAMPLES.keys()
    assert len(made) == 18
    for name, text in made.items():
        epsilons, rest = figures(text)
        expected, stated = figures(EXAMPLES[name])
        assert rest == stated, name
        # Floats of another machine's libraries may differ in the last digits.
        np.testing.assert_allclose(epsilons, expected, rtol=1e-9, atol=0)


def test_a_claim_of_nothing_names_no_order():
    """One of a million examples behind much noise: epsilon is 0, and 1 is no order."""
    text = rq.certificate_file(gaussian(8.0, clip_norm=1.0), dimension=9, rounds=16, examples=10**6)
    VALID.validate(json.loads(text))
    epsilons, _ = figures(text)
    assert epsilons[2:] == [0, 0]


def test_every_example_has_the_form_of_the_page(made):
    for name, text in made.items():
        VALID.validate(data := json.loads(text))
        assert text == json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n", name
        assert text.isascii()
        assert len(text) < 5_000
        for account in data["accounts"]:
            assert account == sorted(account, key=lambda each: json.dumps(each, sort_keys=True))
    used = set(re.findall(r'"(\w+)":', "".join(made.values())))
    assert {name for name in used if f"`{name}`" not in PAGE} == set()


@pytest.mark.parametrize(("name", "worked"), [
    ("gaussian-central", ["4.37718", "1.99310"]), ("one-bit-sum", ["7.64506"]),
    ("hidden-gaussian", ["4.368", "2.337"]),
])  # fmt: skip
def test_the_worked_examples_of_the_page_are_those_of_the_files(name, worked):
    epsilons, _ = figures(EXAMPLES[name])
    for text, epsilon in zip(worked, epsilons, strict=False):
        assert f"{text}" in PAGE
        assert abs(Decimal(text) - Decimal(epsilon)) <= Decimal(1).scaleb(-len(text) + 2)


@pytest.mark.parametrize(("name", "distances"), [
    ("skellam", {0: 10 * 28904, 2: 10 * 676}), ("party-noise", {0: 5 * 4 * 2072, 2: 5 * 317}),
])  # fmt: skip
def test_the_worked_examples_of_integer_noise_are_close_to_the_claims(name, distances):
    """Exact Gaussian curves at the page's own squared distances; delta also pays for the draws."""
    epsilons, data = figures(EXAMPLES[name])
    (release,) = data["accounts"][0]
    variance = release["cohort"] * float.fromhex(release["noise"]["variance"])
    for place, distance in distances.items():
        epsilon = gaussian_epsilon(math.sqrt(distance / variance), 1e-5)
        assert epsilon <= epsilons[place] <= epsilon * 1.0005


@pytest.mark.parametrize("damage", [
    {"format": "randquant certificate, version 2"}, {"trust": "nobody"}, {"accounts": []},
    {"claims": []}, {"digest": ""}, {"seed": 1}, {"honest_others": 1.5},
])  # fmt: skip
def test_the_schema_refuses_other_fields(damage):
    data = json.loads(EXAMPLES["one-bit-sum"])
    assert VALID.is_valid(data)
    assert not VALID.is_valid({**data, **damage})


@pytest.mark.parametrize(("name", "damage"), [
    ("party-noise", {"parties": []}), ("party-noise", {"parties": ["server"]}),
    ("party-noise", {"parties": ["server", "helper"]}), ("party-noise", {"cohort": 2}),
    ("party-noise", {"noise": {"law": "skellam", "variance": "0x1.0000000000000p+15"}}),
    ("party-table", {"parties": ["server"]}), ("party-table", {"cohort": 40}),
    ("table-laplace", {"parties": ["helper"]}), ("spent", {"counts_on": {"cohort": 40}}),
    ("spent", {"counts_on": {"cohort": 40, "parties": ["server"]}}),
    ("skellam", {"parties": ["helper"]}), ("spent", {"epsilon": None}), ("spent", {"order": "inf"}),
    ("spent", {"relation": "any"}), ("spent", {"rounds": 2}), ("spent", {"examples": 5}),
    ("hidden-gaussian", {"hidden": None}), ("hidden-skellam", {"hidden": {"draw": "poisson"}}),
    ("hidden-one-bit", {"hidden": {"draw": "seen", "rate": "0x1.0000000000000p-1"}}),
    ("table-laplace", {"hidden": {"draw": "poisson", "rate": "0x1.0000000000000p-1"}}),
])  # fmt: skip
def test_the_schema_refuses_other_releases(name, damage):
    data = json.loads(EXAMPLES[name])
    release = data["accounts"][0][-1]  # of the only account; `spent` is sorted last
    assert VALID.is_valid(data)
    release.update(damage)
    assert not VALID.is_valid(data)


USE = {"dimension": 50, "rounds": 20, "delta": 1e-5, "examples": 20}
SETTINGS = {
    "bits": (certificates.one_bit(coordinates=32), {
        "channel": rq.stochastic_rounding(clip=0.125, levels=2, margin=0.5), "clip_norm": 0.4,
        "cohort": 50, "coordinates": 16,
    }),
    "skellam": (AdditiveMechanism("skellam", 1.0, 4.0, 4, bits=14, coordinates=32), {
        "kind": "discrete-gaussian", "clip_norm": 2.0, "noise_multiplier": 6.0, "cohort": 5,
        "bits": 15, "deviations": 5.0, "coordinates": 16,
    }),
    "gaussian": (gaussian(8.0, clip_norm=1.0), {"noise_multiplier": 10.0, "clip_norm": 2.0}),
    "parties": (certificates.party_noise(), {
        "clip_norm": 2.0, "noise_multiplier": 6.0, "server_noise": False, "bits": 14,
        "coordinates": 16,
    }),
}  # fmt: skip
CHANGES = [
    (name, "mechanism", change, value)
    for name, (_, changes) in SETTINGS.items()
    for change, value in changes.items()
] + [
    (name, "use", change, value)
    for name in SETTINGS
    for change, value in {"dimension": 90, "rounds": 21, "delta": 1e-6, "examples": 19}.items()
]


def terms(mechanism, use):
    """The parts of a file of which no figure is computed: its accounts and its claims' deltas."""
    claim = Guarantee(1.0, use["delta"], "replace_one", "aggregate", 2.0, 1)
    each = ReleaseTerms(mechanism, use["dimension"], use["rounds"], use["examples"])
    VALID.validate(data := json.loads(Statement([[each]], [claim]).text()))
    return data["accounts"], data["claims"]


@pytest.mark.parametrize(("name", "where", "change", "value"), CHANGES)
def test_each_setting_that_changes_epsilon_is_stated(name, where, change, value):
    """What is stated differs; not the claims alone, from which nobody could verify them."""
    mechanism = SETTINGS[name][0]
    before = terms(mechanism, USE)
    if where == "mechanism":
        after = terms(dataclasses.replace(mechanism, **{change: value}), USE)
    else:
        after = terms(mechanism, {**USE, change: value})
    assert (after[0] != before[0]) == (change != "delta")
    assert (after[1] != before[1]) == (change == "delta")


TABLE = certificates.survey(certificates.QUERIES, 1.0, 1e-6, "aggregate", 20, 200,
                            unit="example", most=9)  # fmt: skip
HEIGHTS = rq.Quantiles(100, 220, column="height", steps=32)
TABLE_CHANGES = {
    "amplitudes": {**TABLE.amplitudes, "age": 5}, "law": Skellam(9999.0), "cohort": 19, "most": 8,
    "queries": {**TABLE.queries, "height": HEIGHTS},
}  # fmt: skip


@pytest.mark.parametrize("change", TABLE_CHANGES)
def test_each_term_of_a_table_is_stated(change):
    use = {**USE, "delta": 1e-6}
    changed = dataclasses.replace(TABLE, **{change: TABLE_CHANGES[change]})
    assert terms(changed, use)[0] != terms(TABLE, use)[0]


def test_each_term_of_hidden_cohorts_is_stated():
    cohorts = HiddenCohorts("poisson", 100, 10, 50)
    changes = {"draw": "fixed", "population": 101, "cohort": 11, "rounds": 51}

    def stated(cohorts):
        text = certificates.hidden(gaussian(8.0, clip_norm=1.0), 5, cohorts)
        return json.loads(text)["accounts"]

    plain = stated(cohorts)
    for change, value in changes.items():
        assert stated(dataclasses.replace(cohorts, **{change: value})) != plain, change
    # Rounded up: a rate that is too small would claim too much.
    rate = float.fromhex(plain[0][0]["hidden"]["rate"])
    assert Fraction(1, 10) < Fraction(rate) < Fraction(1, 10) + Fraction(2) ** -55


def test_what_was_spent_is_stated_and_added():
    text = certificates.after(certificates.SPENT)
    (account,) = json.loads(text)["accounts"]
    (spent,) = [each for each in account if each["kind"] == "spent"]
    changes = {"epsilon": 0.25, "delta": 1e-7}
    for change, value in changes.items():
        assert float.fromhex(spent[change]) == getattr(certificates.SPENT, change)
        changed = dataclasses.replace(certificates.SPENT, **{change: value})
        assert figures(certificates.after(changed))[1]["accounts"] != [account]
    alone = rq.account([certificates.one_bit().release(50, 10, "replace_one")], 1e-5 - 1e-6)
    assert figures(text)[0] == pytest.approx([0.5 + alone.epsilon], rel=1e-15, abs=0)


def test_whole_numbers_are_written_as_the_real_numbers_that_they_are():
    for ints, floats in (
        (gaussian(8, clip_norm=1), gaussian(8.0, clip_norm=1.0)),
        (gaussian(8, clip=1), gaussian(8.0, clip=1.0)),
        (SignSGD(2, 6), SignSGD(2.0, 6.0)),
        (AdditiveMechanism("skellam", 1, 4, 4), AdditiveMechanism("skellam", 1.0, 4.0, 4)),
        (rq.VectorMechanism(certificates.BIT, 1), rq.VectorMechanism(certificates.BIT, 1.0)),
    ):
        assert terms(ints, USE) == terms(floats, USE)


def test_public_seeds_and_what_is_decoded_are_not_stated():
    """They move no epsilon, and a file without them is the same for each round of a run."""
    plain = terms(certificates.one_bit(coordinates=32), USE)
    seeded = certificates.one_bit(coordinates=32, rotation_seed=7).in_round(987654321)
    assert terms(seeded, USE) == plain


@pytest.mark.parametrize("kind", NOISES)
def test_every_integer_noise_is_stated(kind):
    mechanism = AdditiveMechanism(kind, 1.0, 4.0, 4, bits=14)
    data = json.loads(rq.certificate_file(mechanism, dimension=50, rounds=3))
    VALID.validate(data)
    (release,) = data["accounts"][0]
    plan = mechanism.plan(50)
    assert release["grid"] == {"scale": plan.scale.hex(), "bound": plan.bound}
    law = {k: v if isinstance(v, int) else float.fromhex(v)
           for k, v in release["noise"].items() if k != "law"}  # fmt: skip
    assert law == {name: getattr(plan.noise, name) for name in law}
    assert len(law) == 1


def test_a_table_is_stated_without_the_data_or_the_names_of_columns():
    people = [{"age": 20 + k % 60, "ill": "ny"[k % 2]} for k in range(900)]
    queries = {"age": rq.Mean(18, 100), "ill": rq.Counts(["n", "y"])}
    table, other = (
        rq.statistics(records, 1, queries=queries, trust="central")
        for records in (people, people[:450] * 2)
    )
    text = rq.certificate_file(table)
    assert rq.certificate_file(other) == text
    assert "age" not in text.replace("aggregate", "")
    assert "ill" not in text
    epsilons, data = figures(text)
    assert epsilons == [each.epsilon for each in table.guarantees.values()]
    law: Any = table.terms.law
    assert data["accounts"][0][0]["noise"] == {
        "law": "discrete-laplace", "scale": law.scale.hex(),
    }  # fmt: skip


def test_accounts_that_another_contains_are_left_out():
    text = EXAMPLES["two-offers"]
    accounts = json.loads(text)["accounts"]
    rounds = [sorted((r["cohort"], r["rounds"]) for r in account) for account in accounts]
    assert sorted(rounds) == [[(40, 30), (60, 20)], [(40, 40)]]
    # The claim is that of the client with the largest epsilon.
    epsilons, _ = figures(text)
    account = certificates.two_offers()
    other = account.other_relation
    assert other is not None
    assert epsilons == pytest.approx(
        [account.get_privacy_spent().epsilon, other.epsilon], rel=1e-9, abs=0
    )


def test_one_example_of_an_account_has_both_units():
    accountant = RunAccountant(delta=1e-5)
    offer = Offer(AdditiveMechanism("skellam", 1.0, 4.0, 4, bits=14), 50, examples=30)
    accountant.compose(RoundEvent(offer, frozenset({1})), 5)
    epsilons, data = figures(rq.certificate_file(accountant))
    kinds = [(claim["unit"], claim["relation"]) for claim in data["claims"]]
    assert kinds == [
        ("client", "replace_one"), ("example", "replace_one"), ("example", "zero_out"),
    ]  # fmt: skip
    other = accountant.other_relation
    assert other is not None
    assert epsilons == [
        accountant.client_guarantee().epsilon, accountant.get_privacy_spent().epsilon,
        other.epsilon,
    ]  # fmt: skip
    # By this number others derive the example's distance again.
    assert [terms["examples"] for terms in data["accounts"][0]] == [30]


HIDDEN = ["--dimension", "5", "--rounds", "10", "--participation", "poisson", "--of-rounds", "100"]
LEVELS = ["rqm", "--clip", "1.5", "--margin", "1.5", "--levels", "4", "--keep", "0.4"]


def test_what_cannot_be_stated_is_refused(tmp_path, capsys):
    table = certificates.survey(["age"], 1.0, 1e-6, "central", 100, 100)
    with pytest.raises(TypeError, match="a number alone does not say what is released"):
        rq.certificate_file(table.guarantee)
    with pytest.raises(TypeError, match="a mechanism with its dimension and rounds"):
        rq.certificate_file(certificates.one_bit())
    with pytest.raises(TypeError, match="which other values have"):
        rq.certificate_file(table, rounds=3)
    with pytest.raises(ValueError, match="nothing is protected"):
        rq.certificate_file(RunAccountant(delta=1e-5))
    inputs, values = np.linspace(-1, 1, 33), np.arange(256.0)
    large = rq.ChannelMechanism(rq.Channel(inputs, values, np.ones((33, 256), int), 256))
    with pytest.raises(ValueError, match="at most 4096 weights"):
        rq.certificate_file(large, dimension=1, rounds=1)
    words = ["account", *LEVELS, *HIDDEN, "--everybody-sends"]
    assert main([*words, "--certificate", str(tmp_path / "hidden.json")]) == 2
    assert "no Gaussian noise that hides as little is known" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_kinds_of_releases_are_those_of_page_and_schema():
    (row,) = re.findall(r"^\| `kind` \| (.*) \|$", PAGE, re.M)
    assert tuple(re.findall(r'`"([^"]+)"`', row)) == RELEASE_KINDS
    kinds = [each["properties"]["kind"]["const"] for each in SCHEMA["$defs"]["release"]["oneOf"]]
    assert tuple(kinds) == RELEASE_KINDS


def test_a_kind_that_no_verifier_knows_is_not_written(monkeypatch):
    monkeypatch.setattr(AdditiveMechanism, "certified", lambda self, dimension: {"kind": "votes"})
    with pytest.raises(ValueError, match=r"kind of a release to be one of codes, .* got 'votes'"):
        rq.certificate_file(AdditiveMechanism("skellam", 1.0, 4.0, 4), dimension=5, rounds=1)


ACCOUNT = ["account", "skellam", "--clip-norm", "0.5", "--noise-multiplier", "12", "--dimension",
           "50", "--rounds", "7", "--cohort", "40", "--examples", "9"]  # fmt: skip
PLAN = ["plan", "--dimension", "50", "--population", "40", "--cohort", "40", "--rounds", "5",
        "--epsilon", "8", "--mechanisms", "skellam"]  # fmt: skip


PARTIES = ["account", "helper-noise", "--clip-norm", "1", "--noise-multiplier", "4", "--cohort",
           "40", "--dimension", "50", "--rounds", "7"]  # fmt: skip
SECRET = ["account", "gaussian", "--clip-norm", "1", "--noise-multiplier", "2", *HIDDEN]
MODEL = [*PLAN[:4], "80", *PLAN[5:], "--trust", "model", "--bits", "10"]


@pytest.mark.parametrize("words", [ACCOUNT, PLAN, PARTIES, SECRET, MODEL], ids=" ".join)
def test_commands_write_what_they_print(words, tmp_path, capsys):
    path = tmp_path / "run.json"
    assert main([*words, "--certificate", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    epsilons, data = figures(path.read_text())
    VALID.validate(json.loads(path.read_text()))
    first = printed if words[0] == "account" else printed["entries"][0]["guarantee"]
    assert epsilons[0] == pytest.approx(first["epsilon"], rel=1e-9, abs=0)
    assert len(data["claims"]) == (4 if words is ACCOUNT else 2)
    ((release,),) = data["accounts"]
    assert ("hidden" in release) == (words in (SECRET, MODEL))
    assert release["rounds"] == (100 if words is SECRET else 7 if words[0] == "account" else 5)
