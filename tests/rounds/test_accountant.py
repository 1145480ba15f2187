"""The server's account in any order of rounds, newcomers and restarts, against a plain list."""

import functools
from collections import Counter

import pytest
from flower_rounds import noisy
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import randquant as rq
from randquant.aggregation import AdditiveMechanism
from randquant.privacy import NEIGHBORINGS, account
from randquant.rounds import Offer, RoundEvent, RunAccountant, ServerRun
from randquant.statistics import SurveyMechanism, survey

DELTA = 1e-5
OFFERS = [Offer(noisy("local"), 5), Offer(noisy("local"), 3)]
SOME = st.frozensets(st.integers(0, 4), min_size=1, max_size=4)


def cost(answered, quick=True):
    """Of one client, from how often it answered which offer."""
    return cost_of(frozenset(answered.items()), quick)


@functools.cache
def cost_of(answered, quick):
    if not answered:
        return 0.0
    releases = [offer.release(count, "replace_one", "local") for offer, count in answered]
    return account(releases, DELTA, quick=quick).epsilon


class Accounts(RuleBasedStateMachine):
    """What each client has answered is counted here a second time, one answer after the other."""

    @initialize(stable=st.booleans())
    def begin(self, stable):
        self.stable, self.rounds = stable, 0
        self.accountant, self.answered = RunAccountant(DELTA, stable=stable), {}

    @rule(clients=SOME, offer=st.sampled_from(OFFERS), count=st.integers(1, 3))
    def round(self, clients, offer, count):
        event = RoundEvent(offer, clients)
        after = [self.answered.get(c, Counter()) + Counter({offer: count}) for c in clients]
        worst = max(map(cost, after))
        assert not self.accountant.would_exceed(event, worst, count)
        assert self.accountant.would_exceed(event, worst * (1 - 1e-9), count)
        self.accountant.compose(event, count)
        for client in clients:
            for _ in range(count):
                self.answered.setdefault(client, Counter())[offer] += 1
        self.rounds += count

    @rule(connected=st.frozensets(st.integers(0, 9), max_size=4))
    def meet(self, connected):
        worst = Counter()
        for offer in OFFERS:
            most = max((of[offer] for of in self.answered.values()), default=0)
            worst += Counter({offer: 0 if self.stable else most})
        self.accountant.meet(connected)
        for client in connected - self.answered.keys():
            self.answered[client] = worst.copy()

    @rule()
    def restart(self):
        again = RunAccountant(DELTA, stable=self.stable)
        again.load_state_dict(self.accountant.state_dict())
        self.accountant = again

    @invariant()
    def everybody_is_counted(self):
        for client in range(10):
            assert self.accountant.answers(client) == self.answered.get(client, Counter()).total()
        assert self.accountant.num_releases == self.rounds
        worst = max(map(cost, self.answered.values()), default=0.0)
        assert self.accountant.get_epsilon(DELTA) == worst

    def teardown(self):
        most = max((cost(of, quick=False) for of in self.answered.values()), default=0.0)
        assert self.accountant.get_privacy_spent().epsilon == most


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=5, stateful_step_count=6, deadline=None)


def test_a_figure_says_that_several_kinds_of_offers_were_not_chosen_by_looking():
    accountant, client = RunAccountant(DELTA), frozenset({1})
    said = "; if its 2 kinds of offers did not depend on its answers"
    for offer, expected in zip([*OFFERS[:1] * 2, *OFFERS[1:]], ["", "", said], strict=True):
        accountant.compose(RoundEvent(offer, client))
        accountant.compose(RoundEvent(OFFERS[0], frozenset({2})))
        assert accountant.summary().endswith("whoever the other clients are" + expected)


def test_no_new_number_is_asked_where_whoever_it_may_be_is_at_its_limit():
    offer = OFFERS[0]
    accountant = RunAccountant(DELTA, max_epsilon=cost(Counter({offer: 1})))
    run = ServerRun(offer.mechanism, accountant, print)
    accountant.compose(RoundEvent(offer, frozenset({1})))
    assert run.eligible(offer, [1, 2]) == []


def test_a_delta_is_the_inverse_of_an_epsilon():
    event = RoundEvent(Offer(noisy("local"), 650), frozenset({2}))
    accountant = RunAccountant(DELTA, max_epsilon=20.0)
    accountant.compose(event)
    epsilon = accountant.get_epsilon(1e-7)
    delta = accountant.get_delta(epsilon)
    assert accountant.get_epsilon(delta) <= epsilon
    assert 0.97e-7 < delta < 1.02e-7
    assert accountant.get_delta(1e9) == 1e-300
    assert accountant.get_epsilon(accountant.get_delta(0.0)) == 0.0
    assert accountant.would_exceed(event, max_epsilon=epsilon)


def test_a_new_number_has_answered_each_offer_as_often_as_anybody_has():
    """It may be any of the others, whichever offers these have answered."""
    accountant = RunAccountant(DELTA)
    accountant.compose(RoundEvent(OFFERS[0], frozenset({1})), 3)
    accountant.compose(RoundEvent(OFFERS[1], frozenset({2})), 2)
    accountant.meet([1, 2, 9])
    assert [accountant.answers(client) for client in (1, 2, 9)] == [3, 2, 5]
    assert accountant.get_epsilon(DELTA) == cost(Counter({OFFERS[0]: 3, OFFERS[1]: 2}))


def test_a_count_that_was_changed_is_not_believed():
    accountant = RunAccountant(DELTA)
    accountant.compose(RoundEvent(OFFERS[0], frozenset({1})), 3)
    state = accountant.state_dict()
    state["clients"]["1"]["0"] = 1
    with pytest.raises(ValueError, match="damaged or changed"):
        RunAccountant(DELTA).load_state_dict(state)


def test_an_account_of_another_delta_or_other_neighbours_is_not_believed():
    """Its limit was met at them only."""
    accountant = RunAccountant(DELTA)
    accountant.compose(RoundEvent(OFFERS[0], frozenset({1})))
    for other in (RunAccountant(DELTA / 10), RunAccountant(DELTA, "zero_out")):
        with pytest.raises(ValueError, match="it is of schema, delta and neighbours"):
            other.load_state_dict(accountant.state_dict())
        assert other.get_epsilon(DELTA) == 0


@pytest.mark.parametrize("neighboring", NEIGHBORINGS)
def test_beside_one_example_all_data_of_a_client_are_stated(neighboring):
    asked = survey({"x": rq.Mean(0, 1)}, 1.0, 1e-6, "local", 2, 10, unit="example", most=5)
    mechanism = SurveyMechanism(asked)
    offer = Offer(mechanism, mechanism.dimension)
    accountant, whole = (RunAccountant(DELTA, neighboring) for _ in range(2))
    clients = frozenset({1, 2})
    accountant.compose(RoundEvent(offer.for_unit(5), clients), 3)
    whole.compose(RoundEvent(offer, clients), 3)
    one, every = accountant.get_privacy_spent(), whole.get_privacy_spent()
    assert (one.unit, accountant.client_guarantee()) == ("example", every)
    said = f"one example: {accountant.spent_text()}; all data of a client: {whole.spent_text()}"
    assert accountant.summary().startswith(said)


def test_both_figures_of_an_account_of_examples_name_what_they_count_on():
    condition = "the helper does not collude with the server"
    accountant = RunAccountant(DELTA, counts_on=condition)
    offer = Offer(AdditiveMechanism("skellam", 1.0, 4.0, 3), 5, examples=4)
    accountant.compose(RoundEvent(offer, frozenset({1, 2, 3})))
    one, every = accountant.summary().split("; all data of a client: ")
    assert f"2 honest others and {condition}" in one
    assert f"2 honest others and {condition}" in every


def test_where_one_clients_figure_is_not_derived_none_is_stated(monkeypatch):
    """The other relation's figure is the largest of all clients', or there is none."""
    accountant = RunAccountant(DELTA)
    assert accountant.other_relation is None  # nothing was released
    accountant.compose(RoundEvent(OFFERS[1], frozenset({2})), 4)
    alone = accountant.other_relation
    accountant.compose(RoundEvent(OFFERS[0], frozenset({1})), 2)
    both = accountant.other_relation
    each = [account([o.release(n, "zero_out", "local")], DELTA).epsilon
            for o, n in zip(OFFERS, (2, 4), strict=True)]  # fmt: skip
    assert (both.neighboring, both.epsilon, alone.epsilon) == ("zero_out", max(each), each[1])
    assert accountant.summary().count(" under zero_out)") == 1
    release = Offer.release

    def one_relation(offer, rounds, neighboring, trust):
        if offer == OFFERS[0] and neighboring == "zero_out":
            raise ValueError("not derived")
        return release(offer, rounds, neighboring, trust)

    monkeypatch.setattr(Offer, "release", one_relation)
    accountant.compose(RoundEvent(OFFERS[0], frozenset({1})), 97)  # a cost that is not cached
    assert accountant.other_relation is None
    assert "zero_out" not in accountant.summary()
