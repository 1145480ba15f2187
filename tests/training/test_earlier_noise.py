"""Version 0.1.0 counted `noise_multiplier` in 2 · clip_norm: its files say what they said.

Records and figures here are what it wrote and printed, in every place from which a mechanism comes
back.
"""

import dataclasses
import json

import interrupted
import numpy as np
import problems
import pytest
import stores

import randquant as rq
from randquant._internal import to_json
from randquant.aggregation import AdditiveMechanism, from_record
from randquant.mechanisms.registry import (
    NOISY_MECHANISMS_OF_0_1_0,
    parameters_from_file,
    parameters_of_0_1_0,
    stored_parameters,
)
from randquant.rounds import (
    Layout,
    Offer,
    RoundEvent,
    RunAccountant,
    ServerRun,
    ServerStore,
)
from randquant.rounds.accountant import _checksum
from randquant.training import Task, TrainConfig, load_parameters, read_run
from randquant.training.config import (
    OWN,
    configured_mechanism,
    digest,
    mechanism_fingerprint,
    mechanism_record,
)

SUMS = {"clip_norm": 1.5, "noise_multiplier": 2.0, "cohort": 4, "bits": 14, "deviations": 6.0,
        "rotation_seed": 0}  # fmt: skip
HELPED = {"clip_norm": 1.5, "noise_multiplier": 2.0, "clients": 4, "server_noise": True,
          "bits": 14, "deviations": 6.0, "rotation_seed": 0}  # fmt: skip
WRITTEN = {
    "skellam": (SUMS, 4.377407614559249),
    "discrete-gaussian": (SUMS, 4.377406531519839),
    "binomial": (SUMS, 4.377475487702952),
    "helper-noise": (HELPED, 4.377406871331052),
    "gaussian": ({"clip": None, "noise_multiplier": 2.0, "clip_norm": 1.5}, 4.377178095683713),
    "local-gaussian": ({"clip_norm": 1.5, "noise_multiplier": 2.0}, 4.377178095683713),
    "sign-sgd": ({"clip_norm": 1.5, "noise_multiplier": 2.0}, 4.377178095683713),
}
"""Parameters in 0.1.0's records, and its epsilon of four rounds of 10 coordinates."""

PAYLOADS = {
    "skellam": "e74cb9e49cc1b9f0dedee78657b3ccaf",
    "discrete-gaussian": "ee71337479eb75635da1991ba380cfc3",
    "binomial": "936302c7d65e26cd8cc77e8644321d1b",
    "helper-noise": "c885192015d1ce04501b96319be79cd9",
    "sign-sgd": "4b0fbaaa1fc50d9f6fa1aa724836e2da",
}
"""Fingerprints of its payloads."""

OFFERS = {
    "skellam": "6ae398e05c9cf862c4d9d1f6c592209614bd4edc06496e69838a9bc5d87fa8e5",
    "helper-noise": "8da1e1e78b9d208a93a5575687c15a8a60779db9c9011573f2309c9a62fd67a5",
}
"""Digests of its offers of them for 10 coordinates."""


def epsilon(mechanism):
    return rq.account([mechanism.release(10, 4)], 1e-5).epsilon


def earlier_text(offer):
    """An offer as 0.1.0 wrote it."""
    fields = json.loads(offer.to_text())
    fields["noise_multiplier"] = fields.pop("noise_in_clip_norms") / 2
    return json.dumps(fields, sort_keys=True)


def offered(name):
    return Offer(from_record({"mechanism": name, **WRITTEN[name][0]}), 10)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_record_costs_what_it_did_and_is_written_by_another_name(name):
    parameters, expected = WRITTEN[name]
    mechanism = from_record({"mechanism": name, **parameters})
    assert mechanism.noise_multiplier == 4.0
    assert epsilon(mechanism) == pytest.approx(expected, rel=1e-9)
    record = mechanism.record()
    assert "noise_multiplier" not in record
    assert record["noise_in_clip_norms"] == 4.0
    assert from_record(record) == mechanism
    assert parameters_of_0_1_0(name, record) == {"mechanism": name, **parameters}
    with pytest.raises(ValueError, match="got both"):
        from_record({**record, "noise_multiplier": 2.0})
    assert set(WRITTEN) == set(NOISY_MECHANISMS_OF_0_1_0)


@pytest.mark.parametrize("name", PAYLOADS)
def test_its_payloads_are_those_of_the_same_noise_and_of_no_other(name):
    """A client with half the noise that its server accounts for would be promised too little."""
    mechanism = from_record({"mechanism": name, **WRITTEN[name][0]})
    assert mechanism.coding.fingerprint.hex() == PAYLOADS[name]
    same_number = dataclasses.replace(mechanism, noise_multiplier=2.0)
    assert same_number.coding.fingerprint.hex() != PAYLOADS[name]


def test_a_mechanism_of_ones_own_may_mean_something_else_by_the_name():
    fields = {"noise_multiplier": 2.0}
    for change in (parameters_from_file, stored_parameters, parameters_of_0_1_0):
        assert change("response", fields) == fields


@pytest.mark.parametrize("name", OFFERS)
def test_an_offer_is_accounted_for_as_it_was(name):
    offer = offered(name)
    text = earlier_text(offer)
    assert Offer.from_text(text) == offer
    assert offer.digest_of_0_1_0 == OFFERS[name] != offer.digest
    release = Offer.from_text(text).release(4, "replace_one", "aggregate")
    assert rq.account([release], 1e-5).epsilon == pytest.approx(WRITTEN[name][1], rel=1e-9)
    if name == "helper-noise":  # below this a helper and clients refuse the terms of a sum
        assert offer.helper_variance == 903936.0000000033


def test_a_clients_account_goes_on_from_the_offers_that_it_answered():
    offer = offered("skellam")
    before = RunAccountant(1e-5)
    before.compose(RoundEvent(offer, frozenset({1})), 3)
    state = before.state_dict()
    del state["checksum"]
    state["offers"] = [earlier_text(offer)]
    state["checksum"] = _checksum(state)
    after = RunAccountant(1e-5)
    after.load_state_dict(state)
    assert after.get_epsilon(1e-5) == before.get_epsilon(1e-5)
    # The same offer in today's words is no other: four answers of one kind.
    after.compose(RoundEvent(offer, frozenset({1})))
    assert after.get_epsilon(1e-5) == pytest.approx(WRITTEN["skellam"][1], rel=1e-9)
    assert len(after.state_dict()["offers"]) == 1


def test_a_servers_run_is_known_by_the_offer_that_it_began_with(tmp_path):
    model = {"w": np.zeros(10, np.float32)}
    mechanism = offered("skellam").mechanism

    def made(mechanism):
        store = ServerStore(tmp_path / "server.sqlite")
        run = ServerRun(mechanism, RunAccountant(1e-5), lambda *_: None, store=store)
        return run, run.offer(Layout.from_model(model), "refuse")

    run, offer = made(mechanism)
    run.charge(1, offer, range(4), lambda: (model, {}))
    stored = run.stored(offer, model)
    earlier = {**stored.run, "offer": offer.digest_of_0_1_0}
    with run.store._store.changing() as contents:
        contents.write("run", earlier)
    assert run.stored(offer, model).run == earlier
    # In the old unit this number was twice the noise: it is another run.
    other, unlike = made(AdditiveMechanism("skellam", 1.5, 2.0, 4, 14))
    with pytest.raises(ValueError, match="of this mechanism"):
        other.stored(unlike, model)


NAMED = TrainConfig(Task(200), "local-gaussian", {"clip_norm": 1.0, "noise_multiplier": 4.0},
                    cohort=40, trust=None, privacy=rq.Privacy(clip_norm=None))  # fmt: skip
OBJECT = AdditiveMechanism("skellam", 0.5, 12.0, cohort=40)
GIVEN = TrainConfig(Task(200), OWN, mechanism_record(OBJECT), cohort=40,
                    privacy=rq.Privacy(clip_norm=None))  # fmt: skip
DIGESTS = [
    (NAMED, "071ae446b422d1f72e3ea717dd62e78e80833385c0eb06e9a9d6759b0183cda7"),
    (GIVEN, "12c1dcb8a4424522ad5c61f2ab023e6fdc2215e7a65bb82a87f0abb89d51f4b8"),
]
"""Configurations, and the digests by which 0.1.0 knew them, with half of these numbers."""


def earlier(record):
    """A stored configuration as 0.1.0 wrote it."""
    parameters = dict(record["parameters"])
    parameters["noise_multiplier"] = parameters.pop("noise_in_clip_norms") / 2
    return {**record, "parameters": parameters}


@pytest.mark.parametrize(("config", "known"), DIGESTS, ids=["named", "an object"])
def test_a_configuration_is_read_as_it_was_meant_and_known_again(config, known):
    record = to_json(config)
    before = earlier(record)
    assert before["parameters"]["noise_multiplier"] in (2.0, 6.0)
    assert TrainConfig.from_json(before) == TrainConfig.from_json(record) == config
    assert digest(config) == known
    mechanism = configured_mechanism(TrainConfig.from_json(before))
    assert mechanism == configured_mechanism(config)


def test_a_mechanism_that_was_given_as_an_object_has_its_fingerprint():
    known = "327be03cc1df13900dd9f7d7f4577af0530ceca0bfc8f61f8c4d8ec981b5fb67"
    assert mechanism_fingerprint(GIVEN, OBJECT, 10) == known


@pytest.mark.parametrize("mechanism", ["gaussian", "skellam", OWN])
def test_a_run_is_read_and_gone_on_with_at_its_cost(mechanism, tmp_path):
    own = {"clip_norm": 0.5, "noise_multiplier": 8.0}
    if mechanism == OWN:
        own = AdditiveMechanism("skellam", **own, cohort=2).record()
    config = problems.config_of(
        "breast-cancer", "softmax", mechanism, own, population=8, cohort=2, rounds=4, threads=1
    )
    folder = interrupted.begin(tmp_path / "run", config, 2)
    record = stores.record_of(folder, "config")
    del record["checksum"]
    assert "noise_multiplier" not in record["parameters"]
    stores.seal(folder, "config", earlier(record))
    stored = read_run(folder)
    assert (stored.state, len(stored.metrics)) == ("unfinished", 2)
    assert configured_mechanism(stored.config).noise_multiplier == 8.0
    after = problems.train_run(folder, changes={"evaluate_every": 1}).summary
    once = interrupted.whole(tmp_path / "other", config.changed(evaluate_every=1)).summary
    assert after.guarantee == once.guarantee
    model, other = (load_parameters(each) for each in (folder, tmp_path / "other"))
    assert np.array_equal(model, other)
    # What goes on is written in today's words.
    assert "noise_in_clip_norms" in stores.record_of(folder, "config")["parameters"]
