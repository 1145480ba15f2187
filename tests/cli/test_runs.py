"""`randquant runs` and `report`."""

import json
import shutil

import interrupted
import problems
import pytest
import stores
from command_line import as_json, printed, refused
from pages import Page, check_charts, check_self_contained

import randquant
from randquant._internal import files, round_up, to_json
from randquant.training import read_run

CONFIG = problems.config_of(
    dataset="digits",
    model="softmax",
    mechanism="gaussian",
    parameters={"clip_norm": 0.5, "noise_multiplier": 8.0},
    population=20,
    cohort=10,
    rounds=6,
    checkpoint_every=3,
    evaluate_every=2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs in every state: a/baseline, a, half, broken."""
    root = tmp_path_factory.mktemp("runs")
    problems.create_run(root / "a", CONFIG.changed(baseline=True))
    problems.train_run(root / "a")
    half = CONFIG.changed(mechanism="sign-sgd", seed=1)
    interrupted.begin(root / "half", half, 5)
    stores.put(shutil.copytree(root / "half", root / "broken"), "config", "{}")
    return root


def test_runs_lists_every_run_below_a_folder(folder, capsys, monkeypatch):
    found = as_json(capsys, ["runs", folder])["runs"]
    by_name = {run["run"].removeprefix(f"{folder}/"): run for run in found}
    assert {name: run["state"] for name, run in by_name.items()} == {
        "a": "finished",
        "a/baseline": "finished",
        "broken": "damaged",
        "half": "unfinished",
    }
    summary = stores.record_of(folder / "a", "summary")
    assert by_name["a"]["accuracy"] == summary["accuracy"]
    assert by_name["a"]["epsilon"] == summary["guarantee"]["epsilon"]
    other = summary["other_relation"]
    assert by_name["a"]["other_relation"] == other
    assert (other["neighboring"], by_name["half"]["other_relation"]) == ("zero_out", None)
    assert by_name["a"]["bytes_per_upload"] == summary["bytes_per_upload"] == 2600
    assert by_name["a"]["bytes_up"] == 6 * 10 * 2600
    assert by_name["a/baseline"]["epsilon"] is None
    assert (by_name["half"]["rounds"], by_name["half"]["config"]["rounds"]) == (5, 6)
    assert by_name["half"]["epsilon"] > 0
    text = printed(capsys, ["runs", folder])
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    both = [round_up(summary["guarantee"]["epsilon"]), round_up(other["epsilon"])]
    assert rows[str(folder / "a")][5:7] == both
    assert "5/6" in text
    assert "not a JSON object with a checksum" in text  # what is damaged says why
    (folder / "runs").mkdir(exist_ok=True)
    shutil.copytree(folder / "a", folder / "runs" / "a")
    monkeypatch.chdir(folder)
    assert len(as_json(capsys, "runs")["runs"]) == 2
    shutil.rmtree(folder / "runs")


def test_a_run_in_training_is_seen_and_not_disturbed(folder):
    with files.folder(folder / "half"):
        assert read_run(folder / "half").state == "being trained"
    with files.folder(folder / "half"):
        pass
    assert read_run(folder / "half").state == "unfinished"


def test_named_runs_are_compared(folder, capsys):
    named = ["runs", folder / "a", folder / "half"]
    result = as_json(capsys, named)
    assert result["differing"] == ["mechanism", "seed"]
    lines = printed(capsys, named).splitlines()
    assert lines[1].split() == ["mechanism", "gaussian", "sign-sgd"]
    assert lines[2].split() == ["seed", "0", "1"]
    assert lines[3].split() == ["state", "finished", "unfinished"]


@pytest.mark.parametrize(
    ("line", "word"),
    [("runs", "runs"), ("runs nowhere", "nowhere"), ("report nowhere", "nowhere")],
)
def test_without_runs_there_is_one_sentence(line, word, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert word in refused(capsys, line)
    assert not list(tmp_path.iterdir())


def test_a_run_builds_its_page_again(folder, capsys, tmp_path):
    printed(capsys, ["report", folder / "a"])
    before = (folder / "a" / "report.html").read_bytes()
    (folder / "a" / "report.html").unlink()
    printed(capsys, ["report", folder / "a"])
    assert (folder / "a" / "report.html").read_bytes() == before
    printed(capsys, ["report", folder / "a", "--output", tmp_path / "page.html"])
    assert (tmp_path / "page.html").read_bytes() == before
    facts = json.loads((tmp_path / "page.facts.json").read_text())
    assert (folder / "a" / "report.facts.json").read_text() == (
        tmp_path / "page.facts.json"
    ).read_text()
    run = read_run(folder / "a")
    assert facts["randquant"] == randquant.__version__
    assert facts["config"] == to_json(run.config)
    for name in ("guarantee", "other_relation", "participations", "accuracy", "bytes_per_upload"):
        assert facts[name] == to_json(getattr(run.summary, name)), name
    assert facts["baseline_accuracy"] == read_run(folder / "a" / "baseline").accuracy
    words = Page((tmp_path / "page.html").read_text()).words
    for name in ("covered", "not_covered", "seen_by"):
        assert facts[name] in words
    # What no epsilon covers is not archived either.
    assert not {"seconds", "train_loss", "metrics"} & facts.keys()
    assert "call that began it" in refused(capsys, ["report", folder / "half"])


def test_several_runs_share_a_page(folder, capsys, tmp_path):
    printed(capsys, ["report", folder, "--output", tmp_path / "page.html"])
    text = (tmp_path / "page.html").read_text()
    check_self_contained(text)
    assert len(check_charts(text)) >= 3
    words = Page(text).words
    for word in ("half", "baseline", "broken", "Epsilon so far", "unfinished", "sign-sgd"):
        assert word in words
