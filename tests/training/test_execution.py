import dataclasses
import itertools
import json
import os
import shutil

import numpy as np
import problems
import pytest
import stores

from randquant._internal import files
from randquant.aggregation import all_mechanisms
from randquant.channels import Key
from randquant.privacy import GaussianRelease, account
from randquant.reports import report_run
from randquant.training import (
    RunInputs,
    RunStore,
    State,
    create_run,
    load_parameters,
    read_finished,
    read_run,
    sample_cohort,
    train_run,
)
from randquant.training.run_store import RECORDS

CONFIG = problems.config_of(
    "digits", "softmax", "rqm", {"clip": 0.03, "margin": 0.03, "levels": 16, "keep": 0.42},
    population=50, threads=1, cohort=20, rounds=16, learning_rate=1.0, checkpoint_every=7,
    evaluate_every=4,
)  # fmt: skip


def stored(folder) -> list[str]:
    return [name for (name,) in stores.sql(folder, "SELECT name FROM records")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "whole"
    problems.create_run(folder, CONFIG.changed(baseline=True))
    return folder, problems.train_run(folder)


def test_a_run_leaves_what_it_promises(finished):
    folder, run = finished
    for home in (folder, folder / "baseline"):
        assert {path.name for path in home.iterdir()} <= {"run.sqlite", "lock", "baseline"}
        assert {"config", "sent", "summary"} <= set(stored(home)) <= set(RECORDS)
    assert "<svg" in report_run(folder).read_text()
    assert not list(folder.rglob("*.partial"))
    lines = [json.loads(content) for _, content in stores.rounds_of(folder)]
    assert [line["round"] for line in lines] == list(range(1, 17))
    assert [line["round"] for line in lines if line["accuracy"] is not None] == [4, 8, 12, 16]
    assert run.summary.accuracy == lines[-1]["accuracy"] > 0.5
    last = lines[-1][files.CHECKSUM]
    assert stores.record_of(folder, "summary") == files.seal(run.summary, last)
    assert run.summary.bytes_per_upload == 40 + -(-run.summary.dimension // 2)
    assert run.summary.bytes_as_codes == run.summary.bytes_per_upload


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"clip": 0.03, "margin": 3.0, "levels": 16, "keep": 0.1}},
        {"seed": 1},
        {"cohort": 21},
        {"sampling": "poisson"},
        {"trust": "aggregate"},
        {"mechanism": "clipped-sgd", "parameters": {"clip": 0.03}},
    ],
)
def test_a_run_does_not_go_on_with_another_configuration(change, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    stores.seal(folder, "config", CONFIG.changed(rounds=17, **change))
    with pytest.raises(ValueError, match="Expected the configuration"):
        problems.train_run(folder)
    before = stores.text_of(finished[0], "config")
    stores.put(folder, "config", before)
    with pytest.raises(ValueError, match=r"Expected changes of rounds.*so begin a new run"):
        problems.train_run(folder, changes={"rounds": 17, **change})
    assert stores.text_of(folder, "config") == before


@pytest.mark.parametrize("name", ["run.sqlite", "run.sqlite-journal"])
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to(path.parent / "key")])
def test_a_pipe_or_a_link_in_a_run_is_not_waited_for_or_followed(plant, name, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    path = folder / name
    if path.exists():
        path.rename(folder / "key")
    plant(path)
    with pytest.raises(OSError, match=r"to be a regular file, got a (pipe|symbolic link)"):
        problems.train_run(folder)


def test_a_store_of_another_version_or_kind_is_refused(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    stores.drop(folder, "sent")
    with pytest.raises(ValueError, match=r"the record of what was sent in .*, found none"):
        problems.train_run(folder)
    stores.sql(folder, "PRAGMA user_version = 2")
    with pytest.raises(OSError, match=r"version 1 of a run's store in .*run\.sqlite, got 2"):
        problems.train_run(folder)
    (folder / "run.sqlite").write_bytes(b"{}" * 50)
    with pytest.raises(OSError, match="but: file is not a database"):
        problems.train_run(folder)
    (folder / "run.sqlite").write_bytes(b"")  # and not: a run that has sent nothing
    with pytest.raises(OSError, match=r"version 1 of a run's store in .*, got 0"):
        problems.train_run(folder)
    with pytest.raises(FileExistsError, match="--overwrite"):
        problems.create_run(folder, CONFIG)


STOPPING = CONFIG.changed(
    mechanism="sign-sgd",
    parameters={"clip_norm": 0.5, "noise_multiplier": 4.0},
    neighboring="zero_out",
    stop_at_epsilon=5.0,
    rounds=40,
    evaluate_every=10,
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "stopped"
    problems.create_run(folder, STOPPING.changed(baseline=True))
    return folder, problems.train_run(folder)


def epsilon_of(run, participations: int) -> float:
    noise = run.config.parameters["noise_multiplier"]  # zeros are a clip norm away
    release = GaussianRelease(noise, run.summary.dimension, participations, "local", "zero_out")
    return account([release], run.config.delta).epsilon


def test_a_run_ends_before_its_epsilon_would_be_exceeded(stopped):
    folder, run = stopped
    counts = np.zeros(50, dtype=int)
    for metrics in run.metrics:
        counts[sample_cohort(50, 20, metrics.round, Key.from_seed(0))] += 1
        assert metrics.participations == counts.max()
        assert metrics.epsilon == epsilon_of(run, counts.max()) <= 5.0
    assert run.summary.guarantee.epsilon == metrics.epsilon
    assert run.summary.guarantee.neighboring == "zero_out"
    assert run.summary.rounds == len(run.metrics) == metrics.round < 40
    counts[sample_cohort(50, 20, metrics.round + 1, Key.from_seed(0))] += 1
    assert epsilon_of(run, counts.max()) > 5.0
    assert run.summary.accuracy == metrics.accuracy
    assert run.summary.stopped.startswith(f"before round {metrics.round + 1} of 40: epsilon would")
    page = report_run(folder).read_text()
    assert run.summary.stopped in page
    assert "Epsilon so far, per round" in page
    twin = read_finished(folder / "baseline").summary
    assert (twin.rounds, twin.stopped) == (metrics.round, "")


def test_nobody_takes_part_more_often_than_the_cap(tmp_path):
    config = STOPPING.changed(stop_at_epsilon=None, max_participations=4, rounds=10)
    folder = tmp_path / "run"
    problems.create_run(folder, config.changed(baseline=True))
    run = problems.train_run(folder)
    latest = RunStore(folder).state("latest")
    last = State.from_bytes(latest, stores.read_sent(folder).identity, folder)
    assert last.participations.tolist() == [4] * 50
    assert run.summary.participations == 4
    assert run.summary.guarantee.epsilon == epsilon_of(run, 4)
    with pytest.raises(ValueError, match="without max_participations"):  # its cohorts were others
        problems.train_run(folder, changes={"rounds": 9})


def test_a_run_belongs_to_one_process_at_a_time(finished):
    with files.folder(finished[0]):
        with pytest.raises(BlockingIOError, match="another process"):
            problems.train_run(finished[0])
        with pytest.raises(BlockingIOError, match="another process"):
            problems.create_run(finished[0], CONFIG, overwrite=True)
    problems.train_run(finished[0])


def test_training_that_diverges_says_so(tmp_path):
    wide = {**CONFIG.parameters, "clip": 1e15, "margin": 1e15}
    config = CONFIG.changed(learning_rate=1e30, parameters=wide)
    problems.create_run(tmp_path / "run", config)
    with pytest.raises(ValueError, match=r"Round 1: .*diverged; lower learning_rate"):
        problems.train_run(tmp_path / "run")


def test_only_a_run_without_privacy_can_be_prolonged(finished, tmp_path):
    with pytest.raises(ValueError, match="at most the 16 rounds declared before the first, got 19"):
        problems.train_run(finished[0], changes={"rounds": 19})
    folder = tmp_path / "prolonged"
    shutil.copytree(finished[0] / "baseline", folder)
    stores.put(folder, "problem", stores.text_of(finished[0], "problem"))
    plain = stores.read_config(folder)
    run = problems.train_run(folder, changes={"rounds": 19})
    assert (run.summary.rounds, run.config.rounds) == (19, 19)
    longer = plain.changed(rounds=19)
    problems.create_run(tmp_path / "whole", longer)
    problems.train_run(tmp_path / "whole")
    assert (load_parameters(folder) == load_parameters(tmp_path / "whole")).all()


HIDDEN = {
    "mechanism": "skellam",
    "parameters": {"clip_norm": 0.5, "noise_multiplier": 4.0},
    "trust": "model",
}
IMPOSSIBLE = {
    "cohort": {"cohort": 51},
    "rounds": {"rounds": 0},
    "magic": {"mechanism": "magic"},
    "trust": {"trust": "central"},
    "learning_rate": {"learning_rate": float("nan")},
    "delta": {"delta": 1.0},
    "margin, levels, keep": {"parameters": {"clip": 0.03}},
    "checkpoint_every": {"checkpoint_every": 0},
    "stop_at_epsilon": {"stop_at_epsilon": 100.0},
    "max_participations": {"max_participations": 6},
    "clip_norm": {"mechanism": "sign-sgd", "parameters": STOPPING.parameters, "clip_norm": 0.5},
    "Expected local_learning_rate": {"local_epochs": 2},
    "batch": {"batch": 0},
    "learning_rate >= 0": {"local_learning_rate": -1.0},
    "the step size is learning_rate": {"server_options": {"lr": 0.1}},
    "client, example": {"unit": "person"},
    "after a local step": {"unit": "example", "local_learning_rate": 0.1},
    "a clip_norm with unit example": {"unit": "example"},
    "sampling fixed under aggregate": {"sampling": "poisson", "trust": "aggregate"},
    "has no cap": {"sampling": "poisson", "max_participations": 3},
    "cap makes rounds": {**HIDDEN, "max_participations": 3},
    "unit client under model trust": {**HIDDEN, "unit": "example"},
}


@pytest.mark.parametrize(("sentence", "change"), IMPOSSIBLE.items(), ids=IMPOSSIBLE)
def test_impossible_configurations_leave_no_folder(sentence, change, tmp_path):
    with pytest.raises(ValueError, match=f"^(?=Expected).*{sentence}"):
        problems.create_run(tmp_path / "run", CONFIG.changed(**change).changed(baseline=True))
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"no run\.sqlite"):
        problems.train_run(tmp_path / "run")


def test_a_configuration_of_another_problem_is_refused(tmp_path):
    config, inputs = CONFIG.changed(population=30), problems.inputs_of(CONFIG)
    for wrong in (config, CONFIG.changed(problem="ab" * 32), CONFIG.changed(loss="mse_loss")):
        with pytest.raises(ValueError, match="the configuration of a run on this problem"):
            create_run(tmp_path / "run", wrong, inputs)
        assert not (tmp_path / "run").exists()
    create_run(tmp_path / "run", CONFIG, inputs)
    for wrong, said in (
        (problems.problem("digits", "softmax", 30), "the data of 50 clients"),
        (problems.problem("digits", "softmax", 50, seed=1), "model, frozen weights"),
        (dataclasses.replace(inputs.problem, test=None), "test data"),
    ):
        with pytest.raises(ValueError, match=said):
            train_run(tmp_path / "run", RunInputs(wrong))
    assert read_run(tmp_path / "run").rounds == 0


# Every mechanism under every trust

PARAMETERS = {name: each.example for name, each in all_mechanisms().items() if each.example}
TRUSTS = (None, "local", "aggregate", "central")


def config(name, trust, sampling):
    return problems.config_of(
        "breast-cancer", "softmax", name, PARAMETERS[name], population=6, cohort=2, rounds=3,
        trust=trust, sampling=sampling, evaluate_every=3, threads=1, seed=1,
    )  # fmt: skip


def can_work(name, trust, sampling):
    """The examples have even levels, whose sums decode."""
    trusts = all_mechanisms()[name].trusts
    effective = trust or next(iter(trusts), "none")
    return (not trust or trust in trusts) and (sampling, effective) != ("poisson", "aggregate")


def test_every_mechanism_is_looked_at():
    assert PARAMETERS.keys() == all_mechanisms().keys() - {"channel-file"}


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_cannot_work_is_refused_before_anything_is_written(name, tmp_path):
    for trust, sampling in itertools.product(TRUSTS, ("fixed", "poisson")):
        if can_work(name, trust, sampling):
            continue
        folder = tmp_path / f"{trust}-{sampling}"
        with pytest.raises(ValueError, match="trust"):
            problems.create_run(folder, config(name, trust, sampling).changed(baseline=True))
        assert not folder.exists()


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.slow
def test_what_is_not_refused_trains(name, tmp_path, monkeypatch):
    """Poisson rounds have any number of clients, and none of them stops a run."""
    for sampling in ("fixed", "poisson"):
        if not can_work(name, None, sampling):
            continue
        folder = tmp_path / sampling
        problems.create_run(folder, config(name, None, sampling))
        run = problems.train_run(folder)
        assert run.summary.rounds == 3
        sizes = {metrics.bytes_up // run.summary.bytes_per_upload for metrics in run.metrics}
        assert sizes == {2} if sampling == "fixed" else len(sizes) > 1
