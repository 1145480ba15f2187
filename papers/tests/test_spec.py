"""`randquant_papers.sweep.spec` and `names`: what a sweep says, and what is wrong with one."""

import tomllib
from pathlib import Path

import pytest

from randquant_papers.configuration import PaperConfig, named_settings
from randquant_papers.sweep import names
from randquant_papers.sweep.spec import Range, read

EXAMPLE = Path(__file__).parents[1] / "docs" / "sweep.toml"
TRAIN = '[train]\ndataset = "digits"\nmodel = "softmax"\n'
RQM = 'mechanism = "rqm"\nclip = 0.03\nmargin = 0.03\nlevels = 16\nkeep = 0.4\n'
TWO = (
    TRAIN
    + """
clip_norm = 0.5
trust = "aggregate"
[grid]
seed = [0, 1]
[[case]]
mechanism = "skellam"
noise_multiplier = 5
[[case]]
mechanism = "stochastic-rounding"
levels = 2
clip = 0.05
[case.grid]
margin = [0.1, 0.2]
[[case]]
mechanism = "clipped-sgd"
"""
)


def test_every_case_is_combined_with_what_is_common():
    configs = list(read(TWO).grid())
    assert [(c.mechanism, c.seed, c.parameters.get("margin")) for c in configs] == [
        ("skellam", 0, None), ("skellam", 1, None),
        ("stochastic-rounding", 0, 0.1), ("stochastic-rounding", 0, 0.2),
        ("stochastic-rounding", 1, 0.1), ("stochastic-rounding", 1, 0.2),
        ("clipped-sgd", 0, None), ("clipped-sgd", 1, None),
    ]  # fmt: skip
    assert {c.local.threads for c in configs} == {1}


def test_equal_runs_are_run_once():
    text = (
        TRAIN + "rounds = 5\n[[case]]\n" + RQM + "[[case]]\n" + RQM + "[case.grid]\nrounds = [5]\n"
    )
    assert len(list(read(text).grid())) == 1


def test_a_list_that_is_one_value_stands_outside_the_grid():
    text = TRAIN + 'mechanism = "erm"\nclip = 1\nbins = [-2, 0, 2]\n[grid]\ngamma = [0.5, 1.0]\n'
    assert [c.parameters["bins"] for c in read(text).grid()] == [[-2, 0, 2]] * 2


def test_ranges_are_read():
    text = (
        TRAIN
        + 'mechanism = "gaussian"\nclip_norm = 0.5\n[search]\ntrials = 9\nseed = 4\n[ranges]\n'
        "noise_multiplier = {low = 1, high = 9.5, log = true}\nrounds = {low = 5, high = 9}\n"
        "learning_rate = {choices = [1, 2.5]}\n"
    )
    spec = read(text)
    assert (spec.trials, spec.seed) == (9, 4)
    assert spec.cases[0].ranges == {
        "noise_multiplier": Range(1, 9.5, True),
        "rounds": Range(5, 9),
        "learning_rate": Range(choices=(1, 2.5)),
    }


CONFIG = PaperConfig.of("digits", "softmax", "rqm", {"clip": 1, "keep": 0.5}, learning_rate=1.0)


OTHERS = {
    "mechanism": "pbm", "parameters": {"clip": 2}, "trust": "local", "stop_at_epsilon": 3.0,
    "public": "a:b", "parts": ("a",), "frozen": ("a",), "batch": 3,
    "server_options": {"momentum": 0.5}, "evaluate_every": 3, "unit": "example",
    "neighboring": "zero_out", "clip_norm": 2.0,
    "coordinates": 5, "noise": "helper", "sampling": "poisson", "max_participations": 3,
    "numbers": ("loss:0:5",),
    "weighted_by": "loss", "partition": "shards", "buffers": "frozen",
    "device": "cuda", "together": False, "seed": 1, "delta": 1e-6, "local_learning_rate": 0.5,
}  # fmt: skip
"""Another value of a setting than CONFIG's; of the others the doubled one."""


@pytest.mark.parametrize("name", named_settings(CONFIG) | {"parameters": {}})
def test_runs_share_a_folder_exactly_if_they_are_equal(name):
    if name in CONFIG.parameters:
        return
    other = OTHERS[name] if name in OTHERS else named_settings(CONFIG)[name] * 2 or "x"
    assert names.folder(CONFIG.changed(**{name: other})) != names.folder(CONFIG)
    assert names.folder(CONFIG.changed()) == names.folder(CONFIG)


def test_the_example_is_a_sweep():
    assert len(list(read(EXAMPLE.read_text()).grid())) == 7


GRID = TRAIN + RQM
SEARCH = GRID + "[search]\ntrials = 3\n"
WRONG = [
    ("[train", "TOML"),
    ("[trian]\n", "trian"),
    ("train = 3\n", r"a sweep .*train"),
    ('[train]\nmodel = "mlp"\nmechanism = "rqm"\n', "dataset"),
    (TRAIN, "mechanism"),
    (GRID + "theta = 0.2\n", "theta"),
    (GRID + "roundss = 3\n", "did you mean rounds?"),
    (GRID + "[grid]\nrounds = [5, 0]\n", "rounds >= 1"),
    (GRID + "[grid]\nrounds = []\n", r"rounds .*length >= 1"),
    (TRAIN + '[grid]\nmechanism = ["rqm", "laplace"]\n', "laplace"),
    (GRID + "[grid]\nkeep = [0.3]\n", "keep once"),
    (GRID + "[case]\nkeep = 0.3\n", "double the brackets"),
    (GRID + "[[case]]\nnoise_multiplier = 3\n", "noise_multiplier"),
    (GRID + "[[case]]\ngrid = 3\n", "case.grid"),
    (GRID + "[[case]]\nkeep = 0.3\n[case.grid]\nkeep = [0.3]\n", "keep once"),
    (GRID + "[grid]\ndelta = [1e-5, 1e-6]\n", "one delta"),
    (GRID + '[[case]]\nneighboring = "zero_out"\n[[case]]\nseed = 1\n', "one neighboring"),
    (GRID + '[grid]\nunit = ["client", "example"]\n', "one unit"),
    (GRID + "[ranges]\nseed = {low = 1, high = 3}\n", "search"),
    (SEARCH + "[grid]\nseed = [1]\n", "choices"),
    (GRID + "[search]\nseed = 3\n", "trials"),
    (SEARCH + "[ranges]\nseed = [1, 2]\n", "range"),
    (SEARCH + "[ranges]\nseed = {low = 3, high = 1}\n", "high of the range of seed"),
    (SEARCH + "[ranges]\nseed = {low = 0, high = 1, log = true}\n", "low > 0"),
    (SEARCH + "[ranges]\nrounds = {low = 1.5, high = 3}\n", "rounds"),
    (TRAIN + 'mechanism = "clipped-sgd"\nclip = 1\n[search]\ntrials = 3\n', "protect"),
]


@pytest.mark.parametrize(("text", "word"), WRONG)
def test_what_is_wrong_is_one_sentence(text, word):
    with pytest.raises((ValueError, TypeError), match=word) as caught:
        read(text)
    assert str(caught.value).startswith("Expected")
    assert not isinstance(caught.value, tomllib.TOMLDecodeError)


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "{a = " * 5000 + "1" + "}" * 5000])
def test_a_sweep_that_is_nested_deeply_gets_one_sentence(value):
    with pytest.raises(ValueError, match="Expected a sweep as TOML"):
        read(f"[train]\nclip = {value}")
