"""Whatever happens to a run's files, nothing it states is below what was sent."""

import contextlib
import dataclasses
import errno
import json
import math
import os
import shutil

import problems
import pytest
import stores
import torch
from interrupted import SMALL, Interrupted, begin, go_on

import randquant as rq
from randquant import cli
from randquant._internal import files, round_up
from randquant._internal.files import Database
from randquant.aggregation import ClippedSGD, LocalGaussian, SignSGD
from randquant.local_training import Learner
from randquant.mechanisms import build
from randquant.privacy import save_channel
from randquant.reports import report_run
from randquant.training import (
    Algorithm,
    RunStore,
    State,
    Task,
    TrainConfig,
    mechanism_fingerprint,
    read_finished,
    read_run,
)
from randquant.training import execution as runs


@pytest.fixture
def before_round(monkeypatch):
    """Has a function called with the number of each round, before it is computed and sent."""
    made = runs.distributed_sgd

    def patched(look):
        def distributed_sgd(*args, **kwargs):
            algorithm = made(*args, **kwargs)

            def apply(state, cohort, key):
                look(state.round + 1)
                return algorithm.apply(state, cohort, key)

            return Algorithm(algorithm.init, apply)

        monkeypatch.setattr(runs, "distributed_sgd", distributed_sgd)

    return patched


def kill_in(folder, last, before_round, **options):
    """Go on with a run, which is killed while it sends a round."""

    def kill(round):
        if round == last:
            raise Interrupted

    before_round(kill)
    with pytest.raises(Interrupted):
        problems.train_run(folder, **options)
    before_round(lambda round: None)


def epsilon(folder) -> float:
    found = read_run(str(folder))  # a path or its text, as in `rq.train`
    assert found.state != "damaged", found.error
    assert found.sent_rounds is not None
    assert (found.epsilon is None) == (found.sent_rounds.round == 0)
    return found.epsilon or 0.0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "whole"
    problems.create_run(folder, SMALL.changed(baseline=True))
    return folder, problems.train_run(folder)


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run."""
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


# What was sent


def test_what_a_round_costs_is_on_disk_before_it_is_sent(tmp_path, before_round):
    folder, seen = tmp_path / "run", []
    before_round(lambda round: seen.append(stores.read_sent(folder)))
    problems.create_run(folder, SMALL)
    declared = stores.read_sent(folder)
    assert (declared.round, declared.declared) == (0, 9)
    metrics = problems.train_run(folder).metrics
    assert seen == [dataclasses.replace(declared, round=number) for number in range(1, 10)]
    assert declared.epsilon == metrics[-1].epsilon
    assert declared.participations == metrics[-1].participations


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_run_that_was_killed_cannot_end_below_what_was_sent(sampling, tmp_path):
    config = SMALL.changed(sampling=sampling)
    folder = begin(tmp_path / "run", config, 7)
    before, log = epsilon(folder), stores.rounds_of(folder)
    done = read_run(folder).metrics
    assert before >= read_run(folder).metrics[-1].epsilon
    for changes in ({"stop_at_epsilon": 0.99 * before}, {"rounds": 6}, {"delta": 1e-300}):
        wanted = {"stop_at_epsilon": before} if "delta" in changes else {}
        with pytest.raises(ValueError, match=r"which .*(were sent|declared before the first cost)"):
            problems.train_run(folder, changes={**wanted, **changes})
        assert stores.rounds_of(folder) == log
    ended = problems.train_run(folder, changes={"stop_at_epsilon": before})
    assert ended.summary.guarantee.epsilon >= before
    kept = ("round", "epsilon", "train_loss", "seconds_gradient")  # not measured again
    assert [[getattr(m, name) for name in kept] for m in ended.metrics[:7]] == [
        [getattr(m, name) for name in kept] for m in done
    ]


def test_the_round_under_way_counts_as_sent(finished, tmp_path, before_round):
    spent = [m.epsilon for m in finished[1].metrics]
    last = max(number for number in range(2, 10) if spent[number - 1] > spent[number - 2])
    folder = tmp_path / "run"
    problems.create_run(folder, SMALL)
    kill_in(folder, last, before_round)
    found = read_run(folder)
    assert (found.rounds, found.sent_rounds.round) == (last - 1, last)
    assert found.epsilon == spent[-1] > found.metrics[-1].epsilon
    with pytest.raises(ValueError, match="cannot be taken back"):
        problems.train_run(folder, changes={"rounds": last - 1})
    assert len(problems.train_run(folder).metrics) == 9


def test_another_delta_is_stated_for_what_was_sent(tmp_path, capsys):
    folder = begin(tmp_path / "run", SMALL, 7)
    at_first = epsilon(folder)
    config = SMALL.changed(delta=1e-9, neighboring="zero_out")
    RunStore(folder).write("config", config)  # killed before it went on
    found = read_run(folder)
    assert (found.epsilon, found.delta) == (at_first, 1e-5)
    assert {m.epsilon for m in found.metrics} == {None}  # none is known at that delta yet
    assert cli.main(["runs", str(tmp_path)]) == 0
    words = capsys.readouterr().out.split()
    assert words[words.index(round_up(at_first)) + 1] == "1e-5"
    go_on(folder, 8)
    found = read_run(folder)
    assert {(m.delta, m.neighboring) for m in found.metrics} == {(1e-9, "zero_out")}
    problems.create_run(tmp_path / "whole", config)
    whole = problems.train_run(tmp_path / "whole")
    assert (found.epsilon, found.delta) == (whole.metrics[-1].epsilon, 1e-9)
    assert [m.epsilon for m in problems.train_run(folder).metrics] == [
        m.epsilon for m in whole.metrics
    ]
    assert runs.load_parameters(folder).tobytes() == parameters(tmp_path / "whole")


def test_what_hides_zeros_is_not_stated_for_any_two_updates(tmp_path, capsys):
    """Between the new setting and the first round that goes on with it there may be a kill."""
    folder = begin(tmp_path / "run", SMALL.changed(neighboring="zero_out"), 2)
    stores.seal(folder, "config", SMALL.changed(neighboring="replace_one"))
    assert read_run(folder).epsilon == math.inf
    assert cli.main(["runs", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["epsilon"] == "inf"
    go_on(folder, 3)
    assert math.isfinite(read_run(folder).epsilon)


def parameters(folder) -> bytes:
    return runs.load_parameters(folder).tobytes()


def test_a_run_that_ended_early_and_goes_on_is_not_finished_any_more(tmp_path):
    folder = begin(tmp_path / "run", SMALL.changed(baseline=True), 7)
    early = problems.train_run(folder, changes={"rounds": 7})
    assert report_run(folder).exists()
    assert read_run(folder).state == "finished"
    go_on(folder, 8, changes={"rounds": 9})
    found = read_run(folder)
    assert (found.state, found.rounds) == ("unfinished", 8)
    assert found.epsilon == early.summary.guarantee.epsilon
    assert not [*folder.glob("report.*")]
    with pytest.raises(ValueError, match="call that began it"):
        report_run(folder)
    whole = problems.train_run(folder)
    assert (whole.summary.rounds, whole.summary.stopped) == (9, "")
    assert whole.summary.guarantee == early.summary.guarantee
    assert read_finished(folder / "baseline").summary.rounds == 9


def test_an_old_summary_does_not_speak_for_the_round_under_way(tmp_path, before_round):
    """Its checksum follows from the log, which holds no more than when it was written."""
    folder = begin(tmp_path / "run", SMALL, 7)
    assert problems.train_run(folder, changes={"rounds": 7}).summary.stopped
    old = stores.text_of(folder, "summary")
    kill_in(folder, 8, before_round, changes={"rounds": 9})
    stores.put(folder, "summary", old)
    found = read_run(folder)
    assert (found.state, found.epsilon) == ("damaged", None)
    with pytest.raises(ValueError, match=r"cover all .* rounds that were sent"):
        report_run(folder)
    assert problems.train_run(folder).summary.rounds == 9


def test_the_twin_keeps_the_rounds_it_has_done(tmp_path):
    folder = begin(tmp_path / "run", SMALL.changed(baseline=True), 5)
    assert problems.train_run(folder, changes={"rounds": 6}).summary.rounds == 6
    assert read_finished(folder / "baseline").summary.rounds == 9


@pytest.mark.parametrize("changed", [{"train_loss": 0.5}, {"bytes_up": 1}, {"mean": "0" * 64}])
def test_a_round_that_would_be_another_release_is_refused(changed, tmp_path):
    folder = begin(tmp_path / "run", SMALL, 7)
    store, before = RunStore(folder), RunStore(folder).read()
    others = [dataclasses.replace(m, **changed) for m in before.metrics]
    store.write_sent(before.sent_rounds, others)
    with pytest.raises(
        ValueError, match=rf"Expected round 5 .*{next(iter(changed))}.* second release"
    ):
        problems.train_run(folder)
    with pytest.raises(ValueError, match="Expected 7 rounds or more"):
        store.write_sent(before.sent_rounds, others[:6])
    assert store.read().metrics == tuple(others)


def test_what_may_change_is_changed(tmp_path):
    folder = begin(tmp_path / "run", SMALL, 2)
    run = problems.train_run(folder, changes={"rounds": 5, "delta": 1e-6, "stop_at_epsilon": 50.0})
    assert (run.summary.rounds, run.summary.guarantee.delta) == (5, 1e-6)
    assert stores.read_config(folder).stop_at_epsilon == 50
    problems.train_run(folder, changes={"stop_at_epsilon": math.inf, "neighboring": "zero_out"})
    assert stores.read_config(folder).stop_at_epsilon is None
    for wrong in ({"rounds": 4}, {"seed": 1}, {"parameters": {"clip": 1.0}}):
        with pytest.raises(ValueError, match="Expected"):
            problems.train_run(folder, changes=wrong)


# What a run is


def test_a_run_is_bound_to_its_settings_before_its_first_round(tmp_path):
    folder = tmp_path / "run"
    problems.create_run(folder, SMALL)
    other = SMALL.changed(parameters={"clip_norm": 0.5, "noise_multiplier": 80.0})
    good = stores.text_of(folder, "config")
    stores.put(folder, "config", good.replace("8.0", "80.0"))
    with pytest.raises(ValueError, match=r"the settings .* as it was written.*the command or call"):
        problems.train_run(folder)
    stores.seal(folder, "config", other)
    with pytest.raises(ValueError, match="Expected the configuration that the run"):
        problems.train_run(folder)
    assert read_run(folder).state == "damaged"
    stores.put(folder, "config", good)
    problems.train_run(folder)


def test_a_channel_that_was_exchanged_is_noticed(tmp_path):
    path, folder = tmp_path / "channel.json", tmp_path / "run"
    save_channel(path, build("rqm", {"clip": 0.1, "margin": 1.0, "levels": 4, "keep": 0.4}))
    config = SMALL.changed(mechanism="channel-file", parameters={"path": str(path)})
    problems.create_run(folder, config)
    save_channel(path, build("rqm", {"clip": 0.1, "margin": 0.1, "levels": 4, "keep": 0.4}))
    with pytest.raises(ValueError, match="Expected the mechanism that the run"):
        problems.train_run(folder)


def test_an_epsilon_that_was_edited_is_not_printed(run, capsys):
    """By hand, where a report and a list would have printed it."""
    summary = stores.text_of(run, "summary")
    guarantee = read_finished(run).summary.guarantee
    assert guarantee is not None
    edited = summary.replace(f'"epsilon": {guarantee.epsilon}', '"epsilon": 0.5')
    assert edited != summary
    stores.put(run, "summary", edited)
    assert cli.main(["runs", str(run)]) == 0
    assert "damaged" in capsys.readouterr().out
    assert cli.main(["report", str(run)]) == 2
    assert "the results of the run" in capsys.readouterr().err
    problems.train_run(run)  # computes it again
    assert stores.text_of(run, "summary") == summary


LINES = {
    "dropped": lambda lines: lines[:3] + lines[4:],
    "cut short": lambda lines: lines[:-2],
    "doubled": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "one more": lambda lines: [*lines, lines[-1]],
    "swapped": lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
    "one less": lambda lines: lines[:-1],
    "none": lambda lines: [],
}


@pytest.mark.parametrize("lost", [1, 2])
def test_of_a_run_that_was_killed_only_the_round_under_way_may_be_missing(lost, tmp_path):
    folder = begin(tmp_path / "run", SMALL, 3)
    stores.put_rounds(folder, stores.rounds_of(folder)[:-lost])
    assert (read_run(folder).state == "damaged") == (lost > 1)


@pytest.mark.parametrize("change", LINES.values(), ids=LINES)
def test_rounds_that_are_missing_or_moved_are_noticed(change, run):
    stores.put_rounds(run, change(stores.rounds_of(run)))
    assert read_run(run).state == "damaged"
    with pytest.raises(ValueError, match=r"^Expected"):
        problems.train_run(run)


@pytest.mark.parametrize("name", ["config", "sent", "rounds", "summary"])
def test_records_of_another_run_are_noticed(name, run, tmp_path):
    other = tmp_path / "other"
    config = SMALL.changed(seed=1, rounds=3)
    problems.create_run(other, config)
    problems.train_run(other)
    if name == "rounds":
        stores.put_rounds(run, stores.rounds_of(other))
    else:
        stores.put(run, name, stores.text_of(other, name))
    assert read_run(run).state == "damaged"


# Writes that fail


def test_a_file_that_cannot_be_written_is_named_and_left_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_atomic(path, b"before")

    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        files.write_atomic(path, b"after")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"before"]


def test_a_store_that_cannot_be_written_says_so_and_stays_as_it_was(run, finished, monkeypatch):
    """As on a full disk; whoever frees some space goes on."""
    store, before = RunStore(run), RunStore(run).read()
    database = stores.sql(run, "PRAGMA page_count")[0][0]
    real = Database.transaction

    @contextlib.contextmanager
    def full(self, **options):
        with real(self, **options) as connection:
            connection.execute(f"PRAGMA max_page_count = {database}")
            yield connection

    with monkeypatch.context() as patch:
        patch.setattr(Database, "transaction", full)
        with pytest.raises(OSError, match=r"run\.sqlite, but: database or disk is full"):
            store.commit(None, b"x" * 10**6)
    assert store.read() == before
    store.commit(None, b"x" * 10**6)
    assert store.state("latest") == b"x" * 10**6
    assert os.stat(run / "run.sqlite").st_mode & 0o777 == 0o600
    assert sorted(path.name for path in run.iterdir()) == ["baseline", "lock", "run.sqlite"]


def test_no_damage_makes_an_error_show_the_secret_key(tmp_path):
    folder = tmp_path / "run"
    problems.create_run(folder, SMALL.changed(seed=None))
    path, key = folder / "run.sqlite", stores.record_of(folder, "key")["key"]
    good = path.read_bytes()
    start = good.index(key.encode())
    for at in range(start - 40, start + 70):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x80]) + good[at + 1 :])
        for read in (RunStore(folder).key, RunStore(folder).read):
            said = ""
            try:
                read()
            except (ValueError, OSError) as error:
                said = str(error)
            assert not any(key[n : n + 6] in said for n in range(58)), at


def test_what_is_a_users_own_is_not_taken_for_a_run_that_was_cut_off(tmp_path):
    for place in ("baseline", "run.sqlite.partial"):
        (tmp_path / "own" / place).mkdir(parents=True)
        (tmp_path / "own" / place / "thesis.tex").touch()
        for overwrite in (False, True):
            with pytest.raises(OSError, match=r"^Expected"):
                problems.create_run(tmp_path / "own", SMALL, overwrite=overwrite)
        assert (tmp_path / "own" / place / "thesis.tex").exists()
        shutil.rmtree(tmp_path / "own")


@pytest.mark.parametrize("within", ["", "baseline"])
@pytest.mark.parametrize("name", ["run.sqlite.partial", "run.sqlite.partial-journal"])
def test_a_link_is_not_taken_for_what_a_run_that_was_cut_off_has_left(name, within, tmp_path):
    (tmp_path / "thesis.tex").write_text("own")
    home = tmp_path / "own" / within
    home.mkdir(parents=True)
    (home / name).symlink_to(tmp_path / "thesis.tex")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="which holds other files"):
            problems.create_run(tmp_path / "own", SMALL, overwrite=overwrite)
    assert (home / name).read_text() == "own"


def test_of_two_processes_that_begin_a_run_in_a_folder_one_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    with files.folder(folder), pytest.raises(BlockingIOError, match="another process"):
        problems.create_run(folder, SMALL)
    make = runs.make_folder
    other = []

    def slow(path):
        make(path)
        if not other:
            other.append(path)
            begin(path, SMALL, 2)

    monkeypatch.setattr(runs, "make_folder", slow)
    shutil.rmtree(folder)
    with pytest.raises(FileExistsError, match="another process has begun a run"):
        problems.create_run(folder, SMALL)
    assert read_run(folder).rounds == 2


def logged(folder) -> float:
    """The largest epsilon that was written down by whole rounds."""
    found = read_run(folder).metrics
    return max((m.epsilon or 0.0 for m in found), default=0.0)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(0, 12, 2))
def test_a_run_goes_on_after_a_kill_at_any_write(number, after, finished, tmp_path, monkeypatch):
    """Before or after the transaction of that number is on the disk; SQLite knows no between."""
    folder, real, left = tmp_path / "run", Database.transaction, [number]
    problems.create_run(folder, SMALL)

    @contextlib.contextmanager
    def dying(self, **options):
        left[0] -= 1
        if left[0] >= 0:
            with real(self, **options) as database:
                yield database
            return
        with real(self, **options) as database:
            yield database
            if not after:
                raise Interrupted
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(Database, "transaction", dying)
        with pytest.raises(Interrupted):
            problems.train_run(folder)
    assert epsilon(folder) >= logged(folder)
    assert problems.train_run(folder).summary.guarantee == finished[1].summary.guarantee
    assert parameters(folder) == parameters(finished[0])


@pytest.mark.parametrize(
    ("settings", "fixed"),
    [
        ({}, set()),
        ({"privacy": rq.Privacy(max_participations=3)}, {"rounds"}),
        ({"local": rq.Local(standardize=rq.Standardize(0, 1))}, {"delta", "stop_at_epsilon"}),
    ],
    ids=["plain", "capped", "standardised"],
)
def test_what_cohorts_or_a_share_of_the_target_followed_from_stays_as_it_was(settings, fixed):
    """Of all settings that may change: the number of rounds, and what a table had its share of."""
    config = TrainConfig(Task(20, "mse_loss"), "", cohort=4, rounds=9, stop_at_epsilon=8.0,
                         trust="local", **settings)  # fmt: skip
    changes = {"rounds": 8, "delta": 1e-7, "neighboring": "zero_out", "stop_at_epsilon": 7.0,
               "checkpoint_every": 3, "evaluate_every": 2}  # fmt: skip
    assert set(changes) == set(runs.CHANGEABLE_SETTINGS)
    begun = runs.digest(config)
    assert {n for n in changes if runs.digest(config.changed(**{n: changes[n]})) != begun} == fixed
    assert runs.digest(config.changed(cohort=5)) != begun


RECORDED_FINGERPRINTS = {
    LocalGaussian(1.0, 4.0): "5b9c4055a445a94a6bbc80494e12fedef64a740b8d92f5ad201e062bae7ec523",
    SignSGD(1.0, 4.0): "a942d12e87c0dcf2b42bc22634fca4610630d54b6884fbc6f769a2ae11f0767d",
    rq.VectorMechanism(rq.stochastic_rounding(0.5, 2, 0.5), 1.0):
        "23d691ceda4d045018e9984532093f13ebee425ca72ef06b386a496abb638151",
}  # fmt: skip
"""What runs of release 0.1.0 stored, by the mechanism that was given to them as an object."""


@pytest.mark.parametrize("mechanism", RECORDED_FINGERPRINTS, ids=lambda m: type(m).__name__)
def test_a_mechanism_of_a_stored_run_is_known_again(mechanism):
    config = TrainConfig(Task(2), "own", cohort=1)
    assert mechanism_fingerprint(config, mechanism, 5) == RECORDED_FINGERPRINTS[mechanism]


STANDARDIZED = SMALL.changed(
    mechanism="local-gaussian",
    trust="local",
    stop_at_epsilon=100.0,
    standardize=rq.Standardize(-5, 5, share=0.5),
)


def test_statistics_that_are_gone_are_not_asked_for_again_once_rounds_were_sent(tmp_path):
    """They may have been others, and their cost would not be counted twice."""
    folder = begin(tmp_path / "run", STANDARDIZED, 2)
    stores.drop(folder, "standardization")
    before = stores.rounds_of(folder)
    with pytest.raises(ValueError, match="Expected the statistics that the run standardises by"):
        problems.train_run(folder)
    assert stores.rounds_of(folder) == before


def test_statistics_on_other_terms_are_not_what_a_run_was_stated_for(tmp_path):
    folder = begin(tmp_path / "run", STANDARDIZED, 2)
    record = stores.record_of(folder, "standardization")
    del record[files.CHECKSUM]
    other = {**record, "terms": record["terms"].replace("5.0", "6.0")}
    assert other != record
    stores.seal(folder, "standardization", other, stores.read_sent(folder).identity)
    with pytest.raises(ValueError, match="statistics on other terms"):
        problems.train_run(folder)


def test_a_run_that_protects_nothing_has_no_certificate():
    x = [[0.0], [1.0]]
    run = rq.train(
        torch.nn.Linear(1, 2), [(torch.tensor(x), torch.tensor([0, 1]))] * 2, rounds=1,
        mechanism=ClippedSGD(1.0), progress=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="Expected a run with a guarantee to certify"):
        rq.certificate_file(run)


def test_a_run_states_all_that_was_measured_after_its_last_round(finished):
    folder, record = finished
    learner = Learner(problems.inputs_of(SMALL).problem)
    learner.load(runs.load_parameters(folder))
    measured = learner.evaluate()
    for name in ("accuracy", "loss", "balanced_accuracy", "auc"):
        expected = getattr(measured, name)
        assert expected is not None
        assert getattr(record.metrics[-1], name) == getattr(record.summary, name) == expected


@pytest.mark.parametrize(
    "wrong",
    [{"round": -1}, {"round": 10}, {"participations": -1}, {"participations": 10}, {"declared": 0},
     {"delta": 1.1}, {"delta": -0.1}],
)  # fmt: skip
def test_a_record_of_what_was_sent_that_contradicts_itself_is_none(wrong, finished):
    with pytest.raises(ValueError, match=f"Expected {next(iter(wrong))} "):
        dataclasses.replace(stores.read_sent(finished[0]), **wrong)


def test_a_checkpoint_is_bound_to_all_that_its_guarantee_rests_on(run):
    """To the settings, and to the channel, which may be read from a file that they only name."""
    sent, content = RunStore(run).sent_rounds(), RunStore(run).state("latest")
    State.from_bytes(content, sent.identity, run)
    for name in ("settings", "fingerprint"):
        other = dataclasses.replace(sent, **{name: "0" * 64})
        with pytest.raises(ValueError, match="Expected the configuration that the checkpoint"):
            State.from_bytes(content, other.identity, run)
