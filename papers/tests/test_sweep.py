"""Whatever happens to a sweep, it ends with the runs it was to have."""

import math
import multiprocessing

import flips
import made_runs
import pytest
from filelock import FileLock
from made_runs import measured, promise

from randquant.training import RunStatus as Status
from randquant.training import load_parameters, train_run
from randquant_papers import cli, sweep
from randquant_papers.problems import create
from randquant_papers.sweep import names
from randquant_papers.sweep import status as sweep_status
from randquant_papers.sweep.conductor import JOURNAL
from randquant_papers.sweep.search import Search
from randquant_papers.sweep.workers import Workers

TRAIN = """
[train]
dataset = "digits"
model = "softmax"
population = 20
cohort = 10
rounds = {rounds}
evaluate_every = 3
checkpoint_every = 3
clip_norm = 0.5
"""
GRID = (
    TRAIN.format(rounds=6)
    + """
[[case]]
mechanism = "gaussian"
[case.grid]
noise_multiplier = [4.0, 16.0]
[[case]]
mechanism = "gaussian"
noise_multiplier = 4.0
cohort = 21                 # more than there are
[[case]]
mechanism = "clipped-sgd"
[[case]]
mechanism = "gaussian"
noise_multiplier = 2e20
learning_rate = 1e30
"""
)
SEARCH = (
    TRAIN.format(rounds=3)
    + """
[search]
trials = {trials}
[ranges]
learning_rate = {{low = 0.5, high = 4, log = true}}
[[case]]
mechanism = "gaussian"
[case.ranges]
noise_multiplier = {{low = 2.0, high = 40.0, log = true}}
[[case]]
mechanism = "stochastic-rounding"
trust = "aggregate"
clip = 0.05
[case.ranges]
levels = {{low = 2, high = 3}}
margin = {{choices = [0.0, 0.2]}}
"""
)


class Watcher:
    """Takes down what happens, and stops the sweep after so many runs."""

    def __init__(self, most=10**9):
        self.rounds, self.over, self.most = [], [], most

    def sweep(self, total, done):
        self.total, self.done = total, done

    def round(self, folder, config, metrics):
        self.rounds.append((folder.name, metrics.round))

    def ended(self, status):
        self.over.append(status.folder.name)
        if len(self.over) == self.most:
            raise KeyboardInterrupt


def conduct(folder, text, *, resume=False, watcher=None):
    watcher = watcher or Watcher()
    return sweep.conduct(folder, text, jobs=1, resume=resume, watcher=watcher)


@pytest.fixture(scope="module")
def grid(tmp_path_factory, trained_here):
    folder, watcher = tmp_path_factory.mktemp("sweeps") / "grid", Watcher()
    with trained_here():
        return folder, conduct(folder, GRID, watcher=watcher), watcher


def outcome(status):
    return (status.folder.name, status.state, status.accuracy, status.epsilon, status.error)


def test_a_grid_trains_what_can_be_trained(grid, tmp_path):
    folder, found, watcher = grid
    assert (watcher.total, watcher.done, len(watcher.over)) == (5, 0, 5)
    states = ["finished", "finished", "failed", "finished", "failed"]
    assert [status.state for status in found] == states
    assert found[0].epsilon > found[1].epsilon > 0
    assert found[3].epsilon is None
    assert "cohort" in found[2].error
    assert "diverged" in found[4].error
    for status in (found[0], found[3]):
        assert (folder / status.folder.name / "report.html").exists()
        inputs = create(tmp_path / status.folder.name, status.config)
        train_run(tmp_path / status.folder.name, inputs)
        alone = load_parameters(tmp_path / status.folder.name)
        assert alone.tobytes() == load_parameters(status.folder).tobytes()


def test_a_sweep_that_is_over_trains_nothing(grid):
    folder, found, _ = grid
    watcher = Watcher()
    again = conduct(folder, GRID, resume=True, watcher=watcher)
    assert watcher.rounds == []
    assert [outcome(status) for status in again] == [outcome(status) for status in found]
    assert [outcome(status) for status in sweep.outcomes(folder)] == [outcome(s) for s in found]


def test_what_may_not_be_begun_is_refused(grid, tmp_path, capsys):
    folder = grid[0]
    with pytest.raises(FileExistsError, match="--resume"):
        conduct(folder, GRID)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match="other files"):
        conduct(precious, GRID, resume=True)
    with FileLock(folder / "lock"), pytest.raises(BlockingIOError, match="another process"):
        conduct(folder, GRID, resume=True)
    with pytest.raises(ValueError, match="cohort"):  # not one run of it can be trained
        conduct(tmp_path / "none", GRID.replace("cohort = 10", "cohort = 30").replace("21", "31"))
    assert not (tmp_path / "none").exists()
    for wrong in (["sweep"], ["sweep", "/nowhere.toml"], ["sweep", "--resume", "--folder", "x"]):
        assert cli.main(wrong) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_process_that_dies_takes_its_own_run_along(tmp_path):
    with Workers(2) as workers:
        for name in ("a", "b"):
            workers.begin(tmp_path / name, None)
        assert (workers.free, workers.training) == (False, [tmp_path / "a", tmp_path / "b"])
        for child in multiprocessing.active_children():
            child.kill()
        ended = workers.wait()
        while workers.training:
            ended += workers.wait()
        assert {end.folder.name for end in ended} == {"a", "b"}
        assert all("exit code -9" in end.error and not end.lasting for end in ended)
        assert workers.free
    assert not multiprocessing.active_children()


def test_a_search_that_was_stopped_makes_as_many_trials_as_asked_for(tmp_path, in_process):
    folder, text = tmp_path / "search", SEARCH.format(trials=5)
    with pytest.raises(KeyboardInterrupt):
        conduct(folder, text, watcher=Watcher(most=3))
    watcher = Watcher()
    found = conduct(folder, text, resume=True, watcher=watcher)
    assert (watcher.total, watcher.done) == (5, 2)  # the third was over, but not yet recorded
    assert [status.state for status in found] == ["finished"] * 5
    done = Search(sweep.read(text), folder / JOURNAL, 1)._study.get_trials()
    assert [trial.values[0] for trial in done] == [status.accuracy for status in found]
    assert [trial.user_attrs["epsilon"] for trial in done] == [str(s.epsilon) for s in found]
    assert [outcome(status) for status in sweep.outcomes(folder)] == [outcome(s) for s in found]
    with pytest.raises(ValueError, match="only `trials` may be raised"):
        conduct(folder, text.replace("high = 4", "high = 5"), resume=True)


def made_up(folder, config, spoilt):
    """How a run ends, without running it: some fail, some promise nothing."""
    place = folder / names.folder(config)
    if spoilt(config):
        return Status(place, "failed", config, error="it diverged")
    accuracy = 1 / (1 + abs(config.server.learning_rate - 2))
    noise = config.parameters.get("noise_multiplier", config.parameters.get("margin"))
    epsilon = 20 / noise if noise else math.inf
    figures = measured(1, accuracy)
    return made_runs.finished(place, config, promise(epsilon, "central"), figures)


def searched(path, jobs, *, order, stops=()):
    """The trials of a search whose runs end in some order, killed and begun again at times."""
    spec = sweep.read(SEARCH.format(trials=24))
    search, begun, ended, number = Search(spec, path, jobs), {}, {}, 0
    for step in range(1000):
        if step in stops:  # all that is not recorded is lost, and half a line and a lock are left
            with open(path, "ab") as file:
                file.write(b'{"op_code": 4, "wor')
            path.with_name(path.name + ".lock").symlink_to("nowhere")
            search, begun, ended = Search(spec, path, jobs), {}, {}
            number = search.done
        while len(begun) < jobs and (config := search.config(number)) is not None:
            begun[number] = config
            number += 1
        if not begun:
            break
        which = order(sorted(begun))
        config = begun.pop(which)
        ended[which] = made_up(path.parent, config, lambda c: c.server.learning_rate > 3.5)
        while search.done in ended:
            search.record(search.done, ended.pop(search.done))
    return [(t.state.name, t.params, t.values, t.user_attrs) for t in search._study.get_trials()]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_search_makes_the_same_trials_whatever_happens(jobs, tmp_path):
    whole = searched(tmp_path / "a", jobs, order=min)
    assert len(whole) == 24
    assert {state for state, *_ in whole} == {"COMPLETE", "FAIL"}
    assert any(attributes["epsilon"] == "inf" for *_, attributes in whole)
    assert len({attributes["run"] for *_, attributes in whole}) > 12
    stops = (1, 7, 8, 20, 23)
    for name, order in (("b", min), ("c", max)):
        assert searched(tmp_path / name, jobs, order=order, stops=stops) == whole


def test_a_sweep_does_not_delete_what_was_sent(tmp_path, in_process):
    case = '[[case]]\nmechanism = "gaussian"\nnoise_multiplier = 8.0\n'
    text = TRAIN.format(rounds=3) + case
    (found,) = conduct(tmp_path / "sweep", text)
    (found.folder / "run.sqlite").rename(found.folder / "kept.sqlite")
    kept = (found.folder / "kept.sqlite").read_bytes()
    (again,) = conduct(tmp_path / "sweep", text, resume=True)
    assert (again.state, "other files" in again.error) == ("failed", True)
    assert (found.folder / "kept.sqlite").read_bytes() == kept


def test_no_changed_byte_or_digit_of_why_a_run_failed_is_believed(tmp_path):
    sweep_status.give_up(tmp_path, "it failed 12 times", lasting=True)
    path = tmp_path / "failed.json"
    kind = flips.Kind("failure", path, lambda: sweep_status.failure(tmp_path))
    assert kind.read() == "it failed 12 times"
    assert flips.flips(kind, 40, 2)[2] == 0
    path.write_text("{")
    (spec,) = sweep.read(GRID).cases[:1]
    status = sweep_status.read(tmp_path, spec.config({}))
    assert (status.state, "Remove it" in status.error) == ("damaged", True)
