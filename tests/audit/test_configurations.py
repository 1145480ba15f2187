"""Files of other libraries: the same claim as by its figures, or one sentence."""

import json
import math

import pytest

import randquant as rq
from randquant import cli
from randquant.audit.claims.configurations import read

FLOWER_CLIENT = """
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
CLIP = 1.0
app = ClientApp(mods=[LocalDpMod(CLIP, 1e-4, epsilon=10.0, delta=1e-5)])
raise RuntimeError("nothing is run")
"""
FLOWER_SERVER = """
strategy = flwr.serverapp.strategy.DifferentialPrivacyClientSideFixedClipping(
    FedAvg(fraction_train=0.1), noise_multiplier=0.7, clipping_norm=2.0, num_sampled_clients=10
)
"""
PYPROJECT = """
[tool.flwr.app.config]
num-server-rounds = 30
fraction-train = 0.1
noise-multiplier = 0.7
clipping-norm = 2.0
"""
NVFLARE = {
    "format_version": 2,
    "task_result_filters": [
        {
            "tasks": ["train"],
            "filters": [
                {
                    "path": "site.filters.GaussianNoise",
                    "args": {"clip_norm": 1.0, "sensitivity": 1e-4, "sigma": 4.845e-5},
                }
            ],
        }
    ],
    "workflows": [{"path": "nvflare.ScatterAndGather", "args": {"num_rounds": 3}}],
}
PFL = """
accountant = PLDPrivacyAccountant(num_compositions=300, sampling_probability=0.01,
    mechanism="gaussian", epsilon=2.0, delta=1e-6, noise_parameter=1.2, noise_scale=0.5)
mechanism = GaussianMechanism.from_privacy_accountant(accountant, clipping_bound=0.4)
"""
OPACUS = {"history": [[1.1, 0.02, 400]], "mechanism": "prv"}


def written(folder, name, content):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_flowers_local_noise_is_the_classical_formula(tmp_path):
    found = rq.check(written(tmp_path, "client.py", FLOWER_CLIENT), rounds=1)
    assert found.claim.sigma == pytest.approx(1e-4 * math.sqrt(2 * math.log(1.25e5)) / 10)
    assert (found.claim.trust, found.claim.clip_norm, found.claim.epsilon) == ("local", 1.0, 10.0)
    assert found.verdicts == {"replace_one": "false", "zero_out": "false"}


def test_flowers_strategy_and_its_settings_say_the_same(tmp_path):
    given = {"rounds": 30, "rate": 0.1}
    fields, notes = read(written(tmp_path, "server.py", FLOWER_SERVER), given)
    assert {**fields, **given} == {
        **read(written(tmp_path, "pyproject.toml", PYPROJECT), {})[0],
        "trust": "central",
    }
    assert fields["sampling"] == "fixed"
    assert any("number of examples" in note for note in notes)
    clients, _ = read(
        written(
            tmp_path,
            "more.toml",
            PYPROJECT.replace(
                "fraction-train = 0.1", "num-sampled-clients = 10\nnum-supernodes = 30"
            ),
        ),
        {},
    )
    assert clients["rate"] >= 1 / 3


def test_components_of_nvflare_are_found_wherever_they_stand(tmp_path):
    found = rq.check(written(tmp_path, "config_fed_client.json", NVFLARE), epsilon=10)
    same = rq.check(clip_norm=1.0, sensitivity=1e-4, sigma=4.845e-5, rounds=3, epsilon=10)
    assert found.readings == same.readings


def test_pfl_adds_less_noise_than_it_accounts_for(tmp_path):
    fields, notes = read(written(tmp_path, "run.py", PFL), {})
    assert fields == {
        "noise_multiplier": 0.6, "sampling": "poisson", "rate": 0.01, "rounds": 300,
        "trust": "central", "epsilon": 2.0, "delta": 1e-6,
    }  # fmt: skip
    assert any("noise_scale" in note for note in notes)
    fields, notes = read(written(tmp_path, "full.py", PFL.replace("0.5)", "1.0)")), {})
    assert (fields["noise_multiplier"], notes) == (1.2, ())


@pytest.mark.slow
def test_pfls_figure_is_true_without_the_scale(tmp_path):
    assert rq.check(written(tmp_path, "run.py", PFL)).verdicts["zero_out"] == "false"
    full = rq.check(written(tmp_path, "full.py", PFL.replace("0.5)", "1.0)")))
    assert full.verdicts["zero_out"] == "true"


def test_the_state_of_an_accountant_of_opacus(tmp_path):
    fields, _ = read(written(tmp_path, "state.json", OPACUS), {})
    assert fields == {
        "noise_multiplier": 1.1, "sampling": "poisson", "rate": 0.02, "rounds": 400,
        "unit": "example", "trust": "central",
    }  # fmt: skip
    script = "engine.make_private(module=m, noise_multiplier=1.1, max_grad_norm=1.0, sample_rate=q)"
    path = written(tmp_path, "train.py", script)
    for rate, sampling in ((None, "none"), (0.01, "poisson")):
        claim = rq.check(path, rounds=1, rate=rate).claim
        assert (claim.unit, claim.sampling, claim.noise_multiplier) == ("example", sampling, 1.1)


def test_what_is_given_wins(tmp_path):
    path = written(tmp_path, "client.py", FLOWER_CLIENT)
    assert rq.check(path, sigma=3.0, epsilon=1.0).claim.sigma == 3.0
    doubled = written(tmp_path, "two.py", FLOWER_CLIENT + "\nLocalDpMod(2.0, 1e-4, 10.0, 1e-5)\n")
    with pytest.raises(ValueError, match="Expected one clip_norm"):
        rq.check(doubled)
    assert rq.check(doubled, clip_norm=2.0).claim.clip_norm == 2.0


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.yaml", "x", "Expected the configuration's ending to be one of"),
        ("a.toml", "x = ", "Expected TOML in"),
        ("a.json", "{", "Expected JSON in"),
        ("a.py", "def", "Expected Python in"),
        ("b.py", "print(1)", "Expected the noise of a private mechanism"),
        ("c.py", "LocalDpMod(a, b, c, d)", "Expected clipping_norm, sensitivity"),
        ("d.py", "LocalDpMod(1.0, 1.0, 0.0, 1e-5)", "Expected epsilon of LocalDpMod > 0"),
        ("e.py", "LocalDpMod(1.0, 'x', 1.0, 1e-5)", "Expected sensitivity of LocalDpMod to be"),
        (
            "svt.json",
            {"path": "nvflare.app_common.filters.SVTPrivacy", "args": {"epsilon": 0.5}},
            "its epsilon=0.5 is for choosing coordinates, in one round; sending them adds 0.1 for",
        ),
        (
            "n.json",
            {"name": "SVTPrivacy", "args": {"epsilon": 0.5}},
            "got SVTPrivacy, which is not",
        ),
        ("f.json", {"history": [[1.0, 0.1]], "mechanism": "rdp"}, "Expected [noise multiplier"),
        ("g.toml", "sigma = 1.0\nnum-supernodes = 'x'\ncohort-size = 3", "Expected population"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path, capsys, name, content, sentence):
    assert cli.main(["check", str(written(tmp_path, name, content))]) == 2
    assert sentence in capsys.readouterr().err


def test_a_missing_file_is_a_sentence(capsys):
    assert cli.main(["check", "nowhere.json"]) == 2
    assert "Expected a configuration in nowhere.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.py", "N = .1\nmod.GaussianMechanism(1.0, N)\nN = 9\n", "noise"),
        ("b.py", "N = 9\nN = f()\nmod.GaussianMechanism(1.0, N)\n", "noise"),
        ("c.py", "N = 9\nif x:\n    N = .1\nmod.GaussianMechanism(1.0, N)\n", "noise"),
        ("d.py", "N = 9\ndef f(N):\n    mod.GaussianMechanism(1.0, N)\n", "noise"),
        (
            "e.toml",
            "noise_multiplier = 0.1\nrelative_noise_stddev = 9\nclip_norm = 1\n",
            "two names",
        ),
        (
            "f.toml",
            "sigma = 1\nclipping-norm = 1\nfraction-train = 0.01\nmin-train-nodes = 50\n",
            "give rate",
        ),
        ("g.py", "make_private(noise_multiplier=1.0, poisson_sampling=False)\nrate = 1\n", ""),
    ],
)
def test_what_may_mean_something_else_is_not_taken_for_true(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_text(content)
    if expected:
        with pytest.raises(ValueError, match=expected):
            read(path, {})
        return
    for setting in (content, content.replace("False", "flag"), content.replace("=False", "=flag")):
        path.write_text(setting)
        assert read(path, {})[0]["sampling"] == "none"


def test_a_cohort_has_at_least_its_fewest_members(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text(
        "noise-multiplier = 1.0\nclipping-norm = 1.0\nfraction-train = 0.01\n"
        "min-train-nodes = 50\nnum-supernodes = 100\n"
    )
    fields, _ = read(path, {})
    assert 0.5 <= fields["rate"] <= 0.5 + 1e-15


def test_removal_from_cohorts_of_a_fixed_size_is_not_zeros():
    found = rq.check(clip_norm=1.0, noise_multiplier=1.0, sampling="fixed", rate=0.01, rounds=10)
    assert any("somebody else takes the place" in line for line in found.lines())


def lists(depth):
    return "[" * depth + "]" * depth


def tables(depth):
    return '{"a": ' * depth + "1" + "}" * depth


DEEP = {
    "list.json": lists,
    "table.json": tables,
    "arguments.json": lambda n: f'{{"path": "SVTPrivacy", "args": {{"epsilon": {lists(n)}}}}}',
    "history.json": lambda n: f'{{"mechanism": "rdp", "history": [{lists(n)}]}}',
    "list.toml": lambda n: f"noise-multiplier = {lists(n)}",
    "table.toml": lambda n: "x = " + "{a = " * n + "1" + "}" * n,
    "key.toml": lambda n: "a." * n + "b = 1",
    "spaced.toml": lambda n: "a . 'a'. " * n + "b = 1",
    "header.toml": lambda n: f"[{'a.' * n}b]",
    "parentheses.py": lambda n: "x = " + "(" * n + "1" + ")" * n,
    "signs.py": lambda n: f"GaussianMechanism(clipping_bound={'-' * n}1)",
    "sum.py": lambda n: f"GaussianMechanism(clipping_bound=1{'+1' * n})",
    "names.py": lambda n: f"f{'.a' * n}()",
    "calls.py": lambda n: f"f{'()' * n}",
}


@pytest.mark.parametrize("depth", [400, 960, 100_000])
@pytest.mark.parametrize("name", DEEP)
def test_a_file_that_is_nested_deeply_gets_one_sentence(name, depth, tmp_path, capsys):
    (tmp_path / name).write_text(DEEP[name](depth))
    assert cli.main(["check", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("randquant check: Expected")
    assert said.endswith(".\n")
    assert len(said) < 500
