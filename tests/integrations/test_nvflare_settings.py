"""Every setting of a job and of a site on NVFlare: changing it changes what it must."""

from __future__ import annotations

import dataclasses
import inspect
import math

import pytest
from helper_sums import PINNED, helper_in
from nvflare_job import SITES, Server, context_of

import randquant as rq
from randquant.aggregation import VectorMechanism
from randquant.integrations import JobOptions, QuantizeController, QuantizeFilter
from randquant.mechanisms import stochastic_rounding
from randquant.rounds import Offer, RoundEvent, Target, WithHelper

COARSER = VectorMechanism(stochastic_rounding(clip=0.5, levels=2, margin=0.4), clip_norm=1.0)
SUMMED = VectorMechanism(stochastic_rounding(0.5, 2, 2.0), 1.0, "aggregate", len(SITES))


class Seen(Server):
    """A server whose sites do not answer: what it asks for, and of whom."""

    def get_component(self, name):
        self.persistor = name
        return self

    def broadcast_and_wait(self, task, context, sites, *_, **options):
        self.task, self.asked = task, sites


def observed(folder, **changes):
    """All that follows from a job's settings, by name."""
    server = Seen(folder, **{"rounds": 3, "patience": 1, **changes})
    controller = server.controller
    server.run()
    run, task = controller._run, server.task
    offer, account = controller._offer(), run.accountant
    return {
        "mechanism": offer.mechanism, "examples": offer.examples, "scaled": offer.scaled,
        "limit": account.max_epsilon, "delta": account.delta, "relation": account.neighboring,
        "counts on": account.counts_on, "failures": len(run.history),
            "least": controller._min_sites,
        "predicts": run.untuned and run.untuned.predicts,
        "rounds": task.data.get_header("num_rounds"),
        "timeout": task.timeout, "task": task.name, "persistor": server.persistor,
        "folder": controller._path.parent, "sum": type(server.sums[-1]).__name__,
    }  # fmt: skip


JOB = {  # setting: (a value, what changes)
    "mechanism": (COARSER, {"mechanism": COARSER}),
    "rounds": (7, {"rounds": 7}),
    "stop_at_epsilon": (1e6, {"limit": 1e6}),
    "delta": (1e-7, {"delta": 1e-7}),
    "examples": (8, {"examples": 8, "scaled": False}),
    "min_clients": (3, {"least": 3}),
    "learning_rate": (2.0, {"predicts": None, "scaled": False}),
    "predicts": ("numbers", {"predicts": "numbers"}),
    "patience": (2, {"failures": 2}),
    "neighboring": ("zero_out", {"relation": "zero_out"}),
    "timeout": (7, {"timeout": 7}),
    "task_name": ("other", {"task": "other"}),
    "persistor_id": ("mine", {"persistor": "mine"}),
}


def test_every_setting_of_a_job_is_here():
    own = [*inspect.signature(QuantizeController.__init__).parameters][1:]
    options = [field.name for field in dataclasses.fields(JobOptions)]
    assert JOB.keys() | {"folder", "options", "sums"} == {*own, *options}


@pytest.mark.parametrize("name", JOB)
def test_a_setting_of_a_job_changes_what_it_must_and_nothing_else(name, tmp_path):
    value, changes = JOB[name]
    usual, found = observed(tmp_path / "a"), observed(tmp_path / "b", **{name: value})
    assert usual.pop("folder") == tmp_path / "a" / "server"
    assert found.pop("folder") == tmp_path / "b" / "server"
    assert found == usual | changes != usual


def test_a_site_that_comes_later_has_spent_nothing(tmp_path):
    """NVFlare authenticates names: a new one is no old site that has reconnected."""
    run = Server(tmp_path).controller._new_run(lambda level, line: None)
    offer = Offer(run.mechanism, 14)
    run.accountant.compose(RoundEvent(offer, frozenset({1})), 3)
    assert run.eligible(offer, [1, 2]) == [1, 2]
    assert [run.accountant.answers(site) for site in (1, 2)] == [3, 0]


def test_with_a_helper_a_job_sums_and_says_what_it_counts_on(tmp_path):
    sums = WithHelper(helper_in(tmp_path / "helper"))
    found = observed(tmp_path / "a", mechanism=SUMMED, sums=sums)
    assert (found["sum"], found["counts on"], found["least"]) == (
        "HelperRound", sums.counts_on, SUMMED.cohort
    )  # fmt: skip


@pytest.mark.parametrize("min_clients", [1, 2, 3])
def test_with_a_helper_too_a_round_has_min_clients_or_more(min_clients, tmp_path):
    sums = WithHelper(helper_in(tmp_path / "helper"))
    of_two = dataclasses.replace(SUMMED, cohort=2)
    server = Seen(tmp_path / "a", mechanism=of_two, sums=sums, min_clients=min_clients, patience=1)
    assert server.run().sums[-1].terms.least == max(2, min_clients)


def test_what_a_sum_needs_holds_where_nothing_is_summed_too(tmp_path):
    """Under local trust codes are visible: a site that is lost must not leave fewer in the mean."""
    sums = WithHelper(helper_in(tmp_path / "helper"), least=2)
    server = Seen(tmp_path / "a", sums=sums, min_clients=1, patience=1)
    round_sum = server.run().sums[-1]
    assert (type(round_sum).__name__, round_sum._least) == ("PlainSum", 2)


SITE = {  # setting: (a value, what changes)
    "epsilon": (0.5, {"epsilon": 0.5}),
    "folder": ("other", None),
    "delta": (1e-8, {"delta": 1e-8}),
    "neighboring": ("zero_out", {"neighboring": "zero_out"}),
    "examples": (8, {"examples": 8}),
    "helper": (PINNED.hex(), {"helper": PINNED.hex(), "trust": "aggregate"}),
    "identity": ("key.pem", {"identity": "key.pem"}),
    "clip_norm": (2.0, {"clip_norm": 2.0}),
}


def test_every_setting_of_a_site_is_here():
    assert list(SITE) == [*inspect.signature(QuantizeFilter.__init__).parameters][1:]


@pytest.mark.parametrize("name", SITE)
def test_a_setting_of_a_site_changes_its_limits_or_files_and_nothing_else(name, tmp_path):
    """What limits do is `test_limits_settings`; that a site counts its unit is `test_nvflare`."""

    def limits(**changes):
        site = QuantizeFilter(**{"epsilon": math.inf, "folder": str(tmp_path / "a"), **changes})
        member = site._member(context_of("va"))
        own = {f.name: getattr(member.limits, f.name) for f in dataclasses.fields(member.limits)}
        files = {name.removeprefix("randquant-"): path for name, path in member.files.items()}
        return {**own, **files, "drawn": member.drawn}

    value, changes = SITE[name]
    usual = limits()
    assert usual["ledger"] == str(tmp_path / "a" / "va.account")
    if name == "folder":
        value, changes = str(tmp_path / "b"), {"ledger": str(tmp_path / "b" / "va.account")}
    assert limits(**{name: value}) == usual | changes != usual


def test_an_account_of_a_site_is_in_one_place_wherever_its_job_is_started():
    for name in ("accounts", "./accounts", "~/accounts"):
        with pytest.raises(ValueError, match="Expected folder to be a whole path"):
            QuantizeFilter(2.0, name)


@pytest.fixture
def planned(monkeypatch):
    """Return all that follows from the settings of a target, by name.

    What is planned for it is `test_flower_planned`; here, that the job is held to the same.
    """
    seen = []
    plan = lambda target, dimension, log: seen.append((target, dimension)) or COARSER  # noqa: E731
    monkeypatch.setattr(Target, "mechanism", plan)

    def plan_and_observe(**changes):
        given = {"model": 16, "epsilon": 2.0, "rounds": 20, "sites": 4, "folder": "a",
                 "examples": 184, **changes}  # fmt: skip
        job = QuantizeController.for_target(**given)
        target, dimension = seen.pop()
        held = job.stop_at_epsilon, job.delta, job.rounds, job.examples, job.min_clients
        assert held == (
            target.epsilon, target.delta, target.rounds, target.examples, target.summed
        )  # fmt: skip
        return {
            "model": dimension, "epsilon": target.epsilon, "rounds": target.rounds,
            "sites": target.population, "folder": job.folder, "delta": target.delta,
            "examples": target.examples, "privacy": target.privacy, "options": job.options,
        }  # fmt: skip

    return plan_and_observe


TARGET = {
    "model": 40, "epsilon": 1.0, "rounds": 5, "sites": 6, "folder": "other", "delta": 1e-8,
    "examples": 50, "privacy": rq.Privacy(clip_norm=2.0), "options": JobOptions(patience=7),
}  # fmt: skip


def test_every_setting_of_a_target_is_here():
    known = [*inspect.signature(QuantizeController.for_target).parameters]
    assert [*TARGET, "sums"] == sorted(known, key=[*TARGET, "sums"].index)


@pytest.mark.parametrize("name", TARGET)
def test_a_setting_of_a_target_changes_what_it_must_and_nothing_else(name, planned):
    assert planned(**{name: TARGET[name]}) == planned() | {name: TARGET[name]} != planned()


def test_what_was_spent_before_a_target_is_not_ignored(planned):
    spent = rq.Guarantee(0.5, 1e-6, "replace_one", "local", math.inf, 1)
    with pytest.raises(ValueError, match=r"spent but in randquant\.train, .* epsilon=1\.5 and"):
        planned(privacy=rq.Privacy(spent=spent), delta=1e-5)


def test_delta_is_a_tenth_of_one_over_all_that_are_protected_by_default(planned):
    assert [planned(sites=n)["delta"] for n in (6, 400)] == [1e-5, 0.1 / (400 * 184)]
    assert [planned(sites=n, examples=None)["delta"] for n in (6, 20_000)] == [1e-5, 0.1 / 20_000]
