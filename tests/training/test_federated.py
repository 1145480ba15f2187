"""`train` with a model and clients of one's own, from import to a guarantee."""

import dataclasses
import functools
import os
import shutil
import stat

import by_name
import numpy as np
import pytest
import stores
import torch
from by_name import train
from interrupted import Interrupted, dying, stop_after
from torch import nn

import randquant as rq
from randquant.aggregation import describe_influence, update_mechanism
from randquant.channels import Key
from randquant.privacy import account
from randquant.training import (
    TrainingSetup,
    configured_mechanism,
    execution,
    federated,
    is_run,
    read_run,
    sample,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:It depends on the task"),
    pytest.mark.filterwarnings("ignore:Codes of so few bits"),
]

FEATURES, CLASSES, CLIENTS = 6, 3, 30
RULE = torch.tensor(np.random.default_rng(3).normal(size=(FEATURES, CLASSES)), dtype=torch.float32)

CHEAP = {"rounds": 6, "cohort": 10, "progress": False, "checkpoint_every": 2, "evaluate_every": 3}
"""A short run."""


def examples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, FEATURES, generator=generator)
    return features, (features @ RULE).argmax(1)


@pytest.fixture(scope="module")
def clients():
    return {f"phone {k}": examples(8 + k % 3, k) for k in range(CLIENTS)}


@pytest.fixture(scope="module")
def test_data():
    return examples(200, 1000)


def a_model():
    torch.manual_seed(1)
    return nn.Linear(FEATURES, CLASSES)


def noisy(multiplier=2.0, cohort=10):
    """A mechanism of one's own, which needs no search."""
    return update_mechanism(
        "stochastic-rounding", {"clip": 0.5, "levels": 2, "margin": multiplier},
        trust="aggregate", cohort=cohort, clip_norm=1.0,
    )  # fmt: skip


def weights(run):
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()]).numpy()


def participations(run, key):
    """How often the client called most often really took part."""
    counts = np.zeros(run.config.task.population, dtype=np.int64)
    for round in range(1, run.summary.rounds + 1):
        counts[sample(run.config, round, counts, key)] += 1
    return int(counts.max())


def accounted(run, most):
    """The accountant's own guarantee for so many participations."""
    release = configured_mechanism(run.config).release(
        run.summary.dimension, most, run.config.privacy.neighboring
    )
    assert release is not None
    stated = account([release], run.config.delta)
    return dataclasses.replace(stated, simulated=run.config.seed is not None)


def test_own_model_and_clients_from_import_to_report(clients, test_data, tmp_path):
    model = a_model()
    before = [p.detach().clone() for p in model.parameters()]
    chance, threads = torch.get_rng_state(), torch.get_num_threads()
    run = train(model, clients, test=test_data, mechanism=noisy(), seed=0, threads=3, **CHEAP)
    assert torch.equal(torch.get_rng_state(), chance)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert isinstance(run.model, nn.Linear)
    assert run.model is not model
    assert not np.array_equal(weights(run), torch.cat([b.reshape(-1) for b in before]).numpy())
    assert [metrics.round for metrics in run.history] == list(range(1, 7))
    dimension = run.summary.dimension
    assert run.upload_bytes == noisy().upload_bytes(dimension, 10)
    assert all(0.2 < metrics.mean_norm / metrics.noise_norm < 5 for metrics in run.history)
    assert run.guarantee == run.summary.guarantee
    features, labels = test_data
    right = (run.model(features).argmax(1) == labels).float().mean()
    assert run.summary.accuracy == pytest.approx(float(right))
    page = rq.report(run, tmp_path / "page.html").read_text()
    assert "Signal and noise, per round" in page
    told = describe_influence(noisy(), dimension, 10)
    assert told.startswith("one hostile client of 10 moves the mean by at most")
    assert f"O{told[1:]}." in page
    assert "; simulation from a seed: protects nobody" in str(run.guarantee)
    assert str(run.guarantee) in repr(run)


def test_the_page_counts_numbers_among_the_coordinates_that_a_hostile_client_moves(tmp_path):
    """16 weights and a number are padded to 32 coordinates."""
    labels, generator = torch.arange(4) % 2, torch.Generator().manual_seed(0)
    data = [(torch.randn(4, 7, generator=generator), labels) for _ in range(10)]
    settings = {**CHEAP, "rounds": 1, "numbers": ["loss:0:5"]}
    run = train(nn.Linear(7, 2), data, mechanism=noisy(), seed=0, **settings)
    told = describe_influence(noisy(), 16 + 1, 10)
    assert told != describe_influence(noisy(), 16, 10)
    assert f"O{told[1:]}." in rq.report(run, tmp_path / "page.html").read_text()


def test_the_target_is_met_for_the_participations_that_really_happened(clients, test_data):
    run = train(a_model(), clients, test=test_data, epsilon=8, seed=0, **CHEAP)
    most = participations(run, Key.from_seed(0))
    assert most == 2  # 6 rounds of 10 of 30 clients, balanced
    assert run.guarantee is not None
    assert 7.9 < run.guarantee.epsilon <= 8
    assert run.guarantee == accounted(run, most)
    assert (run.guarantee.delta, run.guarantee.trust) == (1e-5, "aggregate")
    assert run.summary.rounds == 6
    assert not run.summary.stopped


def test_an_epsilon_out_of_reach_says_what_would_be_needed(clients):
    with pytest.raises(ValueError, match=r"epsilon >= .* which one round costs"):
        train(a_model(), clients, mechanism=noisy(), epsilon=0.01, **CHEAP)
    with pytest.raises(ValueError, match=r"it would need .*delta > 0"):
        train(a_model(), clients, epsilon=1e-15, delta=0.0, **CHEAP)


@pytest.mark.slow
def test_noise_that_hides_everything_is_warned_of(clients):
    with pytest.warns(UserWarning, match=r"^Hardly anything can be learnt .* about .*") as caught:
        train(a_model(), clients, epsilon=0.05, seed=0, **CHEAP)
    assert [each.filename for each in caught] == [by_name.__file__]  # where the user called


def test_the_key_is_only_in_its_file_which_only_the_user_can_read(clients, tmp_path):
    folder = tmp_path / "run"
    run = train(a_model(), clients, mechanism=noisy(), folder=folder, baseline=True, **CHEAP)
    rq.report(run, folder / "page.html")
    assert stat.S_IMODE(os.stat(folder / "run.sqlite").st_mode) == 0o600
    content = stores.record_of(folder, "key")["key"]
    assert len(bytes.fromhex(content)) == 32
    others = [path for path in folder.rglob("*") if path.is_file()]
    others.remove(folder / "run.sqlite")
    assert {path.name for path in others} == {
        "run.sqlite", "page.html", "page.facts.json", "lock",
    }  # fmt: skip
    statement = "SELECT content FROM records WHERE name != 'key' UNION ALL SELECT content FROM "
    stored = stores.sql(folder, statement + "rounds UNION ALL SELECT content FROM states")
    assert not any(content in str(row) for row in stored)
    for path in others:
        data = path.read_bytes()
        assert content.encode() not in data
        assert bytes.fromhex(content) not in data
    assert content not in repr(run)
    assert run.config.seed is None


def test_another_key_is_refused(clients, tmp_path):
    options = {"mechanism": noisy(), "folder": tmp_path / "run", "baseline": True, **CHEAP}
    cell = functools.partial(train, a_model(), clients, **options)
    with pytest.raises(Interrupted):
        cell(on_round=stop_after(3))
    good = stores.text_of(tmp_path / "run", "key")
    stores.seal(tmp_path / "run", "key", {"key": "00" * 32})
    with pytest.raises(ValueError, match="Expected the secret key that the run"):
        cell()
    for wrong in ({"key": "00" * 31}, {"key": "not digits"}, {"key": 5}, {}):
        stores.seal(tmp_path / "run", "key", wrong)
        with pytest.raises(ValueError, match=r"^Expected 32 secret bytes in .*, got a damaged rec"):
            cell()
    stores.drop(tmp_path / "run", "key")
    with pytest.raises(ValueError, match=r"Expected the run's secret key in .*, found none"):
        cell()
    stores.put(tmp_path / "run", "key", good)
    assert cell().summary.rounds == 6


def test_another_problem_or_setting_is_refused_by_name(clients, test_data, tmp_path):
    cell = functools.partial(train, mechanism=noisy(), folder=tmp_path / "run", seed=0, **CHEAP)
    cell(a_model(), clients, test=test_data)
    changed = {**clients, "phone 3": examples(8, 99)}
    named = {name.replace("3", "three"): data for name, data in clients.items()}
    other = nn.Sequential(a_model())
    for model, data, settings, sentence in [
        (a_model(), changed, {"test": test_data}, "clients' data"),
        (other, clients, {"test": test_data}, "model, frozen weights and trained parts"),
        (a_model(), named, {"test": test_data}, "clients' data"),
        (a_model(), clients, {"test": examples(50, 7)}, "test data"),
        (a_model(), clients, {"test": test_data, "loss": nn.functional.nll_loss}, "loss"),
        (a_model(), clients, {"test": test_data, "cohort": 9, "mechanism": noisy(2, 9)}, "cohort"),
        (a_model(), clients, {"test": test_data, "delta": 1e-3, "seed": 1}, "seed"),
        (a_model(), clients, {"test": test_data, "mechanism": noisy(1.0)}, "mechanism"),
        (a_model(), clients, {"test": test_data, "learning_rate": 0.2}, "learning_rate"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            cell(model, data, **settings)
    # How often to evaluate may change, and delta, which is stated anew.
    again = cell(a_model(), clients, test=test_data, evaluate_every=2)
    assert again.summary.rounds == 6


@pytest.mark.parametrize("rate", [None, 0.5])  # steps without a rate, and SGD
def test_a_cell_that_builds_its_model_goes_on_from_the_weights_it_began_with(
    rate, clients, tmp_path
):
    """Interrupt the cell, run it again: the model has other random weights."""
    settings = {"mechanism": noisy(), "seed": 5, "learning_rate": rate, **CHEAP}
    built = [nn.Linear(FEATURES, CLASSES) for _ in range(3)]
    whole = train(built[0], clients, **settings)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(
            built[0], clients, folder=folder, on_round=stop_after(3, KeyboardInterrupt()),
            **settings,
        )  # fmt: skip
    for model in built[1:]:  # also when it is finished
        with pytest.warns(UserWarning, match="goes on from the initial weights that it began w"):
            again = train(model, clients, folder=folder, **settings)
        assert [m.mean for m in again.history] == [m.mean for m in whole.history]
        assert np.array_equal(weights(again), weights(whole))
    stores.sql(folder, "DELETE FROM states WHERE name = 'initial'")
    with pytest.raises(ValueError, match=r"the weights that the run began with in .*, found none"):
        train(built[1], clients, folder=folder, **settings)


def test_other_frozen_weights_are_another_model(clients, tmp_path):
    """They are in no file of the run."""

    def built():
        return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))

    cell = functools.partial(
        train, clients=clients, mechanism=noisy(), folder=tmp_path / "run", frozen="0.*", **CHEAP
    )
    cell(built())
    with pytest.raises(
        ValueError, match=r"frozen weights .*got a different one: .*\(torch.manual_seed"
    ):
        cell(built())


def test_callbacks_see_every_round_and_may_stop_the_run(clients, test_data, tmp_path):
    first, second = [], []
    run = train(
        a_model(), clients, test=test_data, mechanism=noisy(), baseline=True,
        on_round=[first.append, second.append], **CHEAP,
    )  # fmt: skip
    assert first == second == list(run.history)
    with pytest.raises(RuntimeError, match="broken") as caught:
        train(
            a_model(), clients, mechanism=noisy(), folder=tmp_path / "run",
            on_round=stop_after(4, RuntimeError("broken")), **CHEAP,
        )  # fmt: skip
    assert "the same call goes on" in caught.value.__notes__[0]


def test_a_change_of_directory_does_not_lose_the_folder(clients, monkeypatch, tmp_path):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    leave = lambda metrics: os.chdir(tmp_path / "there")  # noqa: E731
    run = train(a_model(), clients, mechanism=noisy(), folder="run", on_round=leave, **CHEAP)
    assert run.folder == tmp_path / "run"
    assert run.summary.rounds == 6
    assert read_run(run.folder).state == "finished"
    assert not list((tmp_path / "there").iterdir())


@pytest.mark.parametrize(
    ("round", "damage", "said"),
    [
        (None, None, "The run was stopped before its first round."),
        (1, None, "what was sent is on record in {folder}"),
        (3, lambda folder: stores.drop(folder, "sent"), "all rounds that were declared as spent"),
        (3, lambda folder: stores.put(folder, "sent", "{}"), "all rounds that were declared as sp"),
        (3, lambda folder: (folder / "run.sqlite").write_text("{}"), "all rounds that were declar"),
        (3, shutil.rmtree, "no record of what it sent can be read in {folder}: take all rounds"),
    ],
)
@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_what_was_sent_is_said_as_it_is_on_record(
    stop, round, damage, said, clients, monkeypatch, tmp_path
):
    """A run whose record cannot be read is not said to have sent nothing."""
    monkeypatch.setattr(federated.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "own").mkdir()
    homes = []
    begin, run = execution.create, execution._train
    monkeypatch.setattr(execution, "create", lambda *a, **k: homes.append(a[0]) or begin(*a, **k))
    monkeypatch.setattr(execution, "_train", lambda *args: dies() if round is None else run(*args))

    def damaging(metrics):
        if damage is not None and metrics.round == round:
            damage(homes[-1])
        if metrics.round == round:
            raise stop

    def dies():
        raise stop

    for folder in (None, tmp_path / "own" / "run"):
        with pytest.raises(stop) as caught:
            train(a_model(), clients, mechanism=noisy(), folder=folder, on_round=damaging, **CHEAP)
        words = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert said.format(folder=homes[-1]) in words
        # What is left of a run that has sent something stays, whatever its record is like.
        nothing = damage is shutil.rmtree or (folder is None and round is None)
        assert (homes[-1] / "run.sqlite").exists() != nothing


def test_a_temporary_folder_disappears_with_the_run(clients, monkeypatch, tmp_path):
    monkeypatch.setattr(federated.tempfile, "tempdir", str(tmp_path))
    run = train(a_model(), clients, mechanism=noisy(), **CHEAP)
    folder = run.folder
    assert (folder / "run.sqlite").exists()
    del run
    assert not folder.exists()
    with pytest.raises(ValueError, match="cap"):
        train(a_model(), clients, mechanism=noisy(), max_participations=1, trust="model", **CHEAP)
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_folder_that_is_stopped_is_not_lost(clients, monkeypatch, tmp_path):
    monkeypatch.setattr(federated.tempfile, "tempdir", str(tmp_path))
    stopping = stop_after(2, RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken") as caught:
        train(a_model(), clients, mechanism=noisy(), seed=3, on_round=stopping, **CHEAP)
    (kept,) = tmp_path.iterdir()
    assert f"folder={str(kept)!r}" in caught.value.__notes__[0]
    again = train(a_model(), clients, mechanism=noisy(), seed=3, folder=kept, **CHEAP)
    whole = train(a_model(), clients, mechanism=noisy(), seed=3, folder=tmp_path / "run", **CHEAP)
    assert [m.mean for m in again.history] == [m.mean for m in whole.history]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("seed", [None, 3])
def test_a_folder_that_was_begun_and_not_finished_is_begun_again(
    seed, clients, tmp_path, monkeypatch
):
    """A kill before the store of the run, or of its twin, is whole leaves nothing that was sent."""
    whole = {"mechanism": noisy(), "seed": seed, "baseline": True, **CHEAP}
    for number in range(2):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", dying(os.replace, [number]))
            with pytest.raises(Interrupted):
                train(a_model(), clients, folder=folder, **whole)
        assert not is_run(folder)
        assert train(a_model(), clients, folder=folder, **whole).summary.rounds == 6


def test_examples_as_the_privacy_unit(clients, tmp_path):
    run = train(
        a_model(), clients, epsilon=4, unit="example", bits=1, trust="local", seed=0, **CHEAP
    )
    assert run.guarantee is not None
    assert run.guarantee.epsilon <= 4
    assert run.config.local.is_gradient
    assert str(run.guarantee).endswith(
        "(replace_one example, local trust); simulation from a seed: protects nobody"
    )
    assert str(run.guarantee) in repr(run)
    per_client = accounted(run, 2)
    assert per_client.epsilon > 2 * run.guarantee.epsilon  # a client holds eight examples or more
    # Both are promised by the same run, each with its name.
    assert run.beside == per_client
    assert run.beside.unit == "client"
    assert f"one example: {run.guarantee}" in repr(run)
    assert f"one client: {run.beside}" in repr(run)
    page = rq.report(run, tmp_path / "page.html").read_text()
    assert "replace one example, local trust" in page
    assert "replace one client, local trust" in page


def test_what_a_run_is_about_is_on_record(clients, tmp_path):
    run = train(a_model(), clients, mechanism=noisy(), folder=tmp_path / "run", seed=0, **CHEAP)
    task = stores.record_of(tmp_path / "run", "config")["task"]
    assert task == {
        "population": len(clients),
        "loss": "cross_entropy",
        "problem": run.config.task.problem,
    }
    assert configured_mechanism(run.config) == noisy()


def test_advice_points_at_the_callers_own_line(clients, monkeypatch):
    monkeypatch.setattr(TrainingSetup, "advice", lambda *_: "Scale the features.")
    settings = {"mechanism": noisy(), "cohort": 10, "rounds": 2, "progress": False}
    local = rq.Local(threads=1)
    with pytest.warns(federated.Advice, match="Scale the features") as caught:
        rq.train(a_model(), clients, local=local, **settings)
    assert [warning.filename for warning in caught] == [__file__]
