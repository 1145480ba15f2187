"""Files of other libraries: the same claim as by its figures, or one sentence."""

import json
import math
import re

import pytest

from randquant_papers import cli
from randquant_papers.claims import check
from randquant_papers.claims.configurations import read

FLOWER_CLIENT = """
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
app = ClientApp(mods=[LocalDpMod(1.0, 1e-4, epsilon=10.0, delta=1e-5)])
raise RuntimeError("nothing is run")
"""
FLOWER_SERVER = """
strategy = flwr.serverapp.strategy.DifferentialPrivacyClientSideFixedClipping(
    FedAvg(fraction_train=0.1), noise_multiplier=0.7, clipping_norm=2.0, num_sampled_clients=10
)
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
    found = check(written(tmp_path, "client.py", FLOWER_CLIENT), rounds=1)
    assert found.claim.sigma == pytest.approx(1e-4 * math.sqrt(2 * math.log(1.25e5)) / 10)
    assert (found.claim.trust, found.claim.clip_norm, found.claim.epsilon) == ("local", 1.0, 10.0)
    assert found.verdicts == {"replace_one": "false", "zero_out": "false"}


def test_components_of_nvflare_are_found_wherever_they_stand(tmp_path):
    found = check(written(tmp_path, "config_fed_client.json", NVFLARE), epsilon=10)
    same = check(clip_norm=1.0, sensitivity=1e-4, sigma=4.845e-5, rounds=3, epsilon=10)
    assert found.readings == same.readings


SAMPLED_BY_PFL = {
    "sampling": "poisson", "rate": 0.01, "rounds": 300, "trust": "central", "epsilon": 2.0,
    "delta": 1e-6,
}  # fmt: skip
STRATEGY = {"noise_multiplier": 0.7, "clip_norm": 2.0, "trust": "central"}
ACCOUNTED = {
    "noise_multiplier": 1.1, "sampling": "poisson", "rate": 0.02, "rounds": 400,
    "unit": "example", "trust": "central",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "given", "fields", "note"),
    [
        (
            "server.py", FLOWER_SERVER, {"rounds": 30, "rate": 0.1},
            STRATEGY | {"sampling": "fixed"}, "number of examples.* give sampling and rate",
        ),
        ("told.py", FLOWER_SERVER, {"sampling": "poisson", "rate": 0.1}, STRATEGY, ""),
        ("run.py", PFL, {}, SAMPLED_BY_PFL | {"noise_multiplier": 0.6}, "noise_scale"),
        ("full.py", PFL.replace("0.5)", "1.0)"), {},
         SAMPLED_BY_PFL | {"noise_multiplier": 1.2}, None),
        ("state.json", OPACUS, {}, ACCOUNTED, ""),
    ],
)  # fmt: skip
def test_a_file_says_what_its_library_does(tmp_path, name, content, given, fields, note):
    found, notes = read(written(tmp_path, name, content), given)
    assert found == fields
    if note is None:
        assert notes == ()
    else:
        assert re.search(note, " ".join(notes))


@pytest.mark.slow
def test_pfls_figure_is_true_without_the_scale(tmp_path):
    assert check(written(tmp_path, "run.py", PFL)).verdicts["zero_out"] == "false"
    full = check(written(tmp_path, "full.py", PFL.replace("0.5)", "1.0)")))
    assert full.verdicts["zero_out"] == "true"


def test_examples_are_the_unit_of_opacus(tmp_path):
    script = "engine.make_private(module=m, noise_multiplier=1.1, max_grad_norm=1.0, sample_rate=q)"
    path = written(tmp_path, "train.py", script)
    for rate, sampling in ((None, "none"), (0.01, "poisson")):
        claim = check(path, rounds=1, rate=rate).claim
        assert (claim.unit, claim.sampling, claim.noise_multiplier) == ("example", sampling, 1.1)


@pytest.mark.parametrize("flag", ["False", "flag"])
def test_what_may_sample_otherwise_is_not_taken_for_poisson(tmp_path, flag):
    script = f"make_private(noise_multiplier=1.0, poisson_sampling={flag})\nrate = 1\n"
    assert read(written(tmp_path, "g.py", script), {})[0]["sampling"] == "none"


def test_what_is_given_wins(tmp_path):
    path = written(tmp_path, "client.py", FLOWER_CLIENT)
    assert check(path, sigma=3.0, epsilon=1.0).claim.sigma == 3.0
    doubled = written(tmp_path, "two.py", FLOWER_CLIENT + "\nLocalDpMod(2.0, 1e-4, 10.0, 1e-5)\n")
    with pytest.raises(ValueError, match="Expected one clip_norm"):
        check(doubled)
    assert check(doubled, clip_norm=2.0).claim.clip_norm == 2.0


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.toml", "x", "Expected a .json or .py file as a configuration"),
        ("a.json", "{", "Expected JSON in"),
        ("a.py", "def", "Expected Python in"),
        ("b.py", "print(1)", "Expected the noise of a private mechanism"),
        ("c.py", "LocalDpMod(a, b, c, d)", "Expected clipping_norm, sensitivity"),
        ("d.py", "LocalDpMod(1.0, 1.0, 0.0, 1e-5)", "Expected clipping_norm, sensitivity"),
        ("e.py", "LocalDpMod(1.0, 'x', 1.0, 1e-5)", "Expected clipping_norm, sensitivity"),
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
        ("g.py", "LocalDpMod(C, 1.0, 1.0, 1e-5)", "Expected clipping_norm, sensitivity"),
        ("h.json", {"path": "Noise", "args": {"sigma": [1]}}, "Expected the noise"),
        ("i.json", {"history": [[1.0, [], 3]], "mechanism": "rdp"}, "Expected rate to be"),
        ("j.py", "PLDPrivacyAccountant(mechanism='laplace')", "Expected Gaussian noise"),
        ("k.py", "PLDPrivacyAccountant(noise_scale=2.0)", "Expected noise_scale"),
        # What may mean something else is not taken for true.
        ("l.py", "N = .1\nmod.GaussianMechanism(1.0, N)\nN = 9\n", "noise"),
        ("m.py", "N = 9\nN = f()\nmod.GaussianMechanism(1.0, N)\n", "noise"),
        ("n.py", "N = 9\nif x:\n    N = .1\nmod.GaussianMechanism(1.0, N)\n", "noise"),
        ("o.py", "N = 9\ndef f(N):\n    mod.GaussianMechanism(1.0, N)\n", "noise"),
        ("p.py", "GaussianMechanism(1.0, .1, noise_multiplier=9)\n", "Expected one noise"),
        ("nowhere/q.json", None, "Expected a configuration in"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path, capsys, name, content, sentence):
    path = tmp_path / name if content is None else written(tmp_path, name, content)
    assert cli.main(["check", str(path)]) == 2
    assert sentence in capsys.readouterr().err


def test_removal_from_cohorts_of_a_fixed_size_is_not_zeros():
    found = check(clip_norm=1.0, noise_multiplier=1.0, sampling="fixed", rate=0.01, rounds=10)
    assert any("somebody else takes the place" in line for line in found.lines())


def lists(depth):
    return "[" * depth + "]" * depth


DEEP = {
    "list.json": lists,
    "arguments.json": lambda n: f'{{"path": "SVTPrivacy", "args": {{"epsilon": {lists(n)}}}}}',
    "parentheses.py": lambda n: "x = " + "(" * n + "1" + ")" * n,
    "names.py": lambda n: f"f{'.a' * n}()",
}


@pytest.mark.parametrize("depth", [400, 960, 100_000])
@pytest.mark.parametrize("name", DEEP)
def test_a_file_that_is_nested_deeply_gets_one_sentence(name, depth, tmp_path, capsys):
    (tmp_path / name).write_text(DEEP[name](depth))
    assert cli.main(["check", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Expected")
    assert said.endswith(".\n")
    assert len(said) < 500
