import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from randquant._internal import locks, sealed
from randquant._internal.serialization import to_json
from randquant.channels.keys import Key
from randquant.cli import progress
from randquant.mechanisms.registry import build
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.releases import ChannelRelease, GaussianRelease
from randquant.reports.run import report_run
from randquant.training.config import TrainConfig
from randquant.training.participation import sample_cohort
from randquant.training.runs import execution as runs
from randquant.training.runs import folder as run_folder
from randquant.training.runs import log as run_log


def seeded(guarantee):
    return dataclasses.replace(guarantee, simulated=True)


CONFIG = TrainConfig.of(
    dataset="digits",
    model="softmax",
    mechanism="rqm",
    parameters={"clip": 0.03, "margin": 0.03, "levels": 16, "keep": 0.42},
    population=50,
    threads=1,
    cohort=20,
    rounds=16,
    learning_rate=1.0,
    checkpoint_every=7,
    evaluate_every=4,
)


def sent_by(folder):
    return run_folder.read_sent(folder, run_folder.read_config(folder))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "whole"
    runs.create(folder, CONFIG.changed(baseline=True), overwrite=False)
    return folder, runs.execute(folder)


def test_a_run_leaves_what_it_promises(finished):
    folder, run = finished
    for name in ("config.json", "sent.json", "metrics.jsonl", "checkpoint.safetensors"):
        assert (folder / name).exists()
        assert (folder / "baseline" / name).exists()
    assert (folder / "baseline" / "summary.json").exists()
    assert "<svg" in report_run(folder).read_text()
    assert not list(folder.rglob("*.partial"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 17))
    assert [line["round"] for line in lines if line["accuracy"] is not None] == [4, 8, 12, 16]
    assert run.summary.accuracy == lines[-1]["accuracy"] > 0.5
    lines = run_log.read(folder / "metrics.jsonl", sent_by(folder).identity)
    assert json.loads((folder / "summary.json").read_text()) == sealed.seal(run.summary, lines.last)


def test_the_guarantee_covers_the_client_called_most_often(finished):
    _, run = finished
    counts = np.zeros(50, dtype=int)
    for round in range(1, 17):
        counts[sample_cohort(50, 20, round, Key.from_seed(0))] += 1
    channel = build("rqm", CONFIG.parameters)
    release = ChannelRelease(channel, run.summary.dimension, int(counts.max()))
    assert run.summary.participations == counts.max()
    assert run.summary.guarantee == seeded(account([release], 1e-5))
    assert run.summary.bytes_per_upload == 40 + -(-run.summary.dimension // 2)
    assert run.summary.bytes_as_codes == run.summary.bytes_per_upload


KILLED = """
import os, signal, sys
from pathlib import Path
from randquant.training.runs import execution

def reached(config, metrics):
    if metrics.round == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

execution.execute(Path(sys.argv[1]), reached)
"""


def kill_at(folder, number: int) -> None:
    """Train in another process, which kills itself at the end of that round.

    From outside it might be killed too late: on a busy machine nobody looks for seconds.
    """
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(number)])
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("model", "rounds", "kills"),
    [
        ("softmax", 9, (8,)),
        ("mlp", 120, (3, 50, 101)),
        ("cnn", 120, (3, 50, 101)),
    ],
)
@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(model, rounds, kills, tmp_path):
    config = CONFIG.changed(model=model, rounds=rounds)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        runs.create(folder, config, overwrite=False)
    runs.execute(whole)
    for number in kills:
        kill_at(killed, number)
    run = runs.execute(killed)
    assert runs.load_parameters(killed).tobytes() == runs.load_parameters(whole).tobytes()
    assert [m.round for m in run.metrics] == list(range(1, rounds + 1))


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"clip": 0.03, "margin": 3.0, "levels": 16, "keep": 0.1}},
        {"seed": 1},
        {"cohort": 21},
        {"mechanism": "clipped-sgd", "parameters": {"clip": 0.03}},
    ],
)
def test_a_run_does_not_go_on_with_another_configuration(change, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    sealed.write(folder / "config.json", CONFIG.changed(rounds=17, **change))
    with pytest.raises(ValueError, match="Expected the configuration"):
        runs.execute(folder)
    shutil.copy(finished[0] / "config.json", folder)
    with pytest.raises(ValueError, match=r"Expected changes of rounds.*so begin a new run"):
        runs.execute(folder, changes={"rounds": 17, **change})
    assert (folder / "config.json").read_bytes() == (finished[0] / "config.json").read_bytes()


@pytest.mark.parametrize("name", ["config.json", "sent.json", "metrics.jsonl", "checkpoint"])
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to(path.parent / "key")])
def test_a_pipe_or_a_link_in_a_run_is_not_waited_for_or_followed(plant, name, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    path = folder / name.replace("checkpoint", "checkpoint.safetensors")
    path.rename(folder / "key")
    plant(path)
    with pytest.raises(OSError, match=r"to be a regular file, got a (pipe|symbolic link)"):
        runs.load_parameters(folder) if name == "checkpoint" else runs.execute(folder)


def test_who_took_part_is_in_a_file_that_only_the_user_can_read(finished):
    assert (finished[0] / "checkpoint.safetensors").stat().st_mode & 0o777 == 0o600


def test_a_run_folder_of_an_earlier_version_is_refused(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    (folder / "config.json").write_text(json.dumps(to_json(CONFIG)))
    (folder / "sent.json").unlink()
    with pytest.raises(ValueError, match="not a JSON object with a checksum"):
        runs.execute(folder)
    sealed.write(folder / "config.json", CONFIG)
    with pytest.raises(ValueError, match="the record of what was sent, found none"):
        runs.execute(folder)


STOPPING = CONFIG.changed(
    model="softmax",
    mechanism="sign-sgd",
    parameters={"clip_norm": 0.5, "noise_multiplier": 2.0},
    neighboring="zero_out",
    stop_at_epsilon=5.0,
    rounds=40,
    evaluate_every=10,
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "stopped"
    runs.create(folder, STOPPING.changed(baseline=True), overwrite=False)
    return folder, runs.execute(folder)


def epsilon_of(run, participations: int) -> float:
    noise = run.config.parameters["noise_multiplier"] * 2  # zeros are half as far
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
    assert f"time           {run.seconds:.1f} s for {metrics.round} rounds" in "\n".join(
        progress.table(folder, run)
    )
    twin = json.loads((folder / "baseline" / "summary.json").read_text())
    assert (twin["rounds"], twin["stopped"]) == (metrics.round, "")
    assert (
        json.loads((folder / "baseline" / "metrics.jsonl").read_text().splitlines()[0])["epsilon"]
        is None
    )


def test_a_stopped_run_stays_stopped(stopped, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped[0], folder)
    assert runs.execute(folder) == stopped[1]
    declared = stopped[1].summary.rounds
    for limit in (6.0, None):
        with pytest.raises(ValueError, match=f"at most the {declared} rounds declared before"):
            runs.execute(folder, changes={"stop_at_epsilon": limit})
    with pytest.raises(ValueError, match=f"the {declared} rounds declared before the first cost"):
        runs.execute(folder, changes={"stop_at_epsilon": 3.0})
    assert runs.execute(folder) == stopped[1]


def test_nobody_takes_part_more_often_than_the_cap(tmp_path):
    config = STOPPING.changed(stop_at_epsilon=None, max_participations=4, rounds=10)
    folder = tmp_path / "run"
    runs.create(folder, config.changed(baseline=True), overwrite=False)
    run = runs.execute(folder)
    tensors = safetensors.numpy.load((folder / "checkpoint.safetensors").read_bytes())
    assert tensors["participations"].tolist() == [4] * 50
    assert run.summary.participations == 4
    assert run.summary.guarantee.epsilon == epsilon_of(run, 4)
    with pytest.raises(ValueError, match="without max_participations"):  # its cohorts were others
        runs.execute(folder, changes={"rounds": 9})


def test_a_run_belongs_to_one_process_at_a_time(finished):
    with locks.folder(finished[0]):
        with pytest.raises(BlockingIOError, match="another process"):
            runs.execute(finished[0])
        with pytest.raises(BlockingIOError, match="another process"):
            runs.create(finished[0], CONFIG, overwrite=True)
    runs.execute(finished[0])


def test_training_that_diverges_says_so(tmp_path):
    wide = {**CONFIG.parameters, "clip": 1e15, "margin": 1e15}
    config = CONFIG.changed(learning_rate=1e30, parameters=wide)
    runs.create(tmp_path / "run", config, overwrite=False)
    with pytest.raises(ValueError, match=r"Round 1: .*diverged; lower learning_rate"):
        runs.execute(tmp_path / "run")


def test_only_a_run_without_privacy_can_be_prolonged(finished, tmp_path):
    with pytest.raises(ValueError, match="at most the 16 rounds declared before the first, got 19"):
        runs.execute(finished[0], changes={"rounds": 19})
    folder = tmp_path / "prolonged"
    shutil.copytree(finished[0] / "baseline", folder)
    shutil.copy(finished[0] / "problem.json", folder)
    plain = run_folder.read_config(folder)
    run = runs.execute(folder, changes={"rounds": 19})
    assert (run.summary.rounds, run.config.rounds) == (19, 19)
    longer = plain.changed(rounds=19)
    runs.create(tmp_path / "whole", longer, overwrite=False)
    runs.execute(tmp_path / "whole")
    assert (runs.load_parameters(folder) == runs.load_parameters(tmp_path / "whole")).all()


def test_nothing_is_overwritten_unasked(finished, tmp_path):
    with pytest.raises(FileExistsError, match="--overwrite"):
        runs.create(finished[0], CONFIG, overwrite=False)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError):
        runs.create(precious, CONFIG, overwrite=True)
    assert (precious / "thesis.tex").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"cohort": 51},
        {"rounds": 0},
        {"population": 10**6},
        {"model": "transformer"},
        {"dataset": "imagenet"},
        {"mechanism": "magic"},
        {"trust": "central"},
        {"partition": "fair"},
        {"learning_rate": float("nan")},
        {"delta": 1.0},
        {"parameters": {"clip": 0.03}},
        {"checkpoint_every": 0},
        {"stop_at_epsilon": 100.0},
        {"max_participations": 6},
        {"mechanism": "sign-sgd", "parameters": STOPPING.parameters, "clip_norm": 0.5},
    ],
)
def test_impossible_configurations_leave_no_folder(change, tmp_path):
    with pytest.raises(ValueError, match=r"^Expected"):
        runs.create(
            tmp_path / "run", CONFIG.changed(**change).changed(baseline=True), overwrite=False
        )
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"no config\.json"):
        runs.execute(tmp_path / "run")
