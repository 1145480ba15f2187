"""The verifier notices faults planted in the sensitivities, accounts and certificates of randquant.

Each makes figures too small. Every fault has a size of its own, since caches keep what was computed
without it, and with it.
"""

from dataclasses import replace

import certificates
import pytest
from random_certificates import proven

import randquant as rq
from randquant.aggregation import AdditiveMechanism, HelperNoise, additive, baselines
from randquant.privacy import Guarantee
from randquant.privacy.accounting import gaussian, releases
from randquant.privacy.certificates import sum_curvature
from randquant.rounds import Offer, RoundEvent, RunAccountant, statement
from randquant.statistics.query import Cells, Tree


def skellam(clients):
    return AdditiveMechanism("skellam", 1.0, 4.0, cohort=clients, bits=12)


def subset(size):
    rounded = AdditiveMechanism("discrete-gaussian", 1.0, 6.0, cohort=10, coordinates=64)
    return rq.certificate_file(rounded, dimension=650, rounds=25 + size, examples=20)


def noisy_sum(size):
    return rq.certificate_file(skellam(4), dimension=100, rounds=10 + size, examples=50)


def server_noise(size):
    rounds, noise = 100 + size, baselines.gaussian(1.0, clip_norm=1.0)
    return rq.certificate_file(noise, dimension=9, rounds=rounds, examples=10**5)


def party_noise(size):
    parties = HelperNoise(1.0, 4.0, clients=40, bits=12)
    return rq.certificate_file(parties, dimension=50, rounds=5 + size)


def table(size):
    queries = {"height": rq.Quantiles(100, 220), "sex": rq.Counts(["f", "m"])}
    clients = 40 + size
    return rq.certificate_file(
        rq.survey(queries, 1.0, 1e-6, "aggregate", clients, clients, noise="parties")
    )


def bits_of_many_rounds(size):
    channel = rq.stochastic_rounding(clip=(1250 + size) / 10**4, levels=2, margin=0.875)
    one_bit = rq.VectorMechanism(channel, 0.5, "aggregate", 40)
    return rq.certificate_file(one_bit, dimension=50, rounds=100)


def two_offers(size):
    accountant = RunAccountant(delta=(10 + size) / 10**6)
    for clients in (4, 6):
        offer = Offer(skellam(clients), 100)
        accountant.compose(RoundEvent(offer, frozenset({1})), 5)
    return rq.certificate_file(accountant)


def two_clients(size):
    accountant = RunAccountant(delta=(30 + size) / 10**6)
    for client, rounds in ((4, 9), (6, 5)):
        offer = Offer(skellam(client), 100)
        accountant.compose(RoundEvent(offer, frozenset({client})), rounds)
    return rq.certificate_file(accountant)


def spent_before(size):
    return certificates.after(certificates.SPENT, mechanism=skellam(10 + size))


def share_of_a_subset(clip_norm, neighboring, *, examples=None, norm_sent=None):
    return distance(norm_sent or clip_norm, neighboring, examples=examples)


def as_near_as_zeros(clip_norm, _, **how):
    return distance(clip_norm, "zero_out", **how)


def without_float32(clip_norm, neighboring, *, examples=None, norm_sent=None):
    radii = 2 if neighboring == "replace_one" else 1
    return radii * clip_norm / (examples or 1)


def least_account(accountant):
    spent = [accountant.__class__(accountant.delta) for _ in accountant._spent]
    for one, (client, counts) in zip(spent, accountant._spent.items(), strict=True):
        one._spent = {client: counts}
    return min((most(one) for one in spent), key=lambda guarantee: guarantee.epsilon)


def other_relation(guarantee):
    fields = about(guarantee)
    other = {"replace_one": "zero_out", "zero_out": "replace_one"}
    return {**fields, "relation": other[fields["relation"]]}


def largest_energy(parts):
    return replace(all_energies(parts), energy=max(part.energy for part in parts))


distance, all_energies = additive.update_distance, gaussian.RoundLoss.combined
rounded, of_tree, curvature = additive.squared_distance_on_grid, Tree.distance, releases._curvature
most, about, cells = RunAccountant.get_privacy_spent, statement._about, Cells.distance
upper, attained, added = sum_curvature._upper, sum_curvature.by_distance, Guarantee.__add__


def larger_delta(one, other):
    return replace(added(one, other), delta=max(one.delta, other.delta))


FAULTS = {
    "one example's share of a subset is one of the subset's norm": (
        subset, [(additive, "update_distance", share_of_a_subset)],
    ),
    "one of two means is rounded": (
        noisy_sum,
        [(additive, "squared_distance_on_grid", lambda s, size, most: rounded(s, size / 4, most))],
    ),
    "paths that part at the root differ by one amplitude": (
        table, [(Tree, "distance", lambda tree, a, norm: of_tree(tree, a, norm) - 2 * a**2)],
    ),
    "cells differ in one integer": (
        table, [(Cells, "distance", lambda block, a, norm: cells(block, a, norm) // 2)],
    ),
    "another update is as near as zeros": (
        server_noise, [(baselines, "update_distance", as_near_as_zeros)],
    ),
    "means are not rounded to 32 bits": (
        server_noise, [(baselines, "update_distance", without_float32)],
    ),
    "of two clients' accounts the lesser counts": (
        two_clients, [(RunAccountant, "get_privacy_spent", least_account)],
    ),
    "relations are exchanged": (noisy_sum, [(statement, "_about", other_relation)]),
    "of two offers the larger energy counts": (
        two_offers, [(gaussian.RoundLoss, "combined", largest_energy)],
    ),
    "a cohort counts itself among the others": (
        bits_of_many_rounds,
        [
            (sum_curvature, "_upper", lambda c, others, *rest: upper(c, others + 1, *rest)),
            (sum_curvature, "by_distance", lambda c, others, *rest: attained(c, others + 1, *rest)),
        ],
    ),
    "errors of the comparison with Gaussian noise are left out": (
        bits_of_many_rounds, [(gaussian, "_integrated_errors", lambda *_: 0.0)],
    ),
    "of two guarantees the larger delta counts": (
        spent_before, [(Guarantee, "__add__", larger_delta)],
    ),
    "both parties' noise counts where one is trusted": (
        party_noise, [(releases, "_curvature", lambda noise, cohort: curvature(noise, 2 * cohort))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_verifier_does_not_prove_what_a_fault_claims(fault, monkeypatch):
    write, planted = FAULTS[fault]
    assert proven(write(0))
    for place, name, faulty in planted:
        monkeypatch.setattr(place, name, faulty)
    assert not proven(write(1 + list(FAULTS).index(fault)))
