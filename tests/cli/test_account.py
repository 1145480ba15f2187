"""`randquant account`: who sees in which rounds a client takes part."""

from dataclasses import replace

import pytest
from seldom import seldom

import randquant as rq
from randquant._internal.rounding import round_down
from randquant.cli.main import main
from randquant.privacy.guarantee import MODEL_TERMS

GAUSSIAN = "account gaussian --clip-norm 1 --noise-multiplier 0.5 --dimension 8 --rounds 4"


def printed(capsys, *more):
    status = main([*GAUSSIAN.split(), *more])
    out, err = capsys.readouterr()
    return status, out + err


@pytest.mark.parametrize("neighboring", ["replace_one", *seldom("zero_out")])
@pytest.mark.parametrize("participation", ["poisson", "fixed"])
def test_hidden_cohorts_are_those_of_the_releases(capsys, participation, neighboring):
    zeroed = rq.GaussianRelease(1.0, 8, 1, neighboring="zero_out")
    replaced = rq.GaussianRelease(0.5, 8, 1)
    one = zeroed if neighboring == "zero_out" else replaced
    absent = zeroed if one is replaced else None
    status, text = printed(
        capsys, "--participation", participation, "--of-rounds", "64", "--neighboring", neighboring
    )
    rate = 1 / 16 * (1 + 2**-52)
    stand_in = replaced if one is zeroed else None
    release = {
        "poisson": lambda: rq.Sampled(one, rate, 64, absent=absent),
        "fixed": lambda: rq.Sampled(one, rate, 64, "fixed", absent=stand_in),
    }[participation]()
    assert status == 0
    assert str(rq.account([release], 1e-5)) in text
    assert "hidden cohorts" in text
    assert "nobody learns" in text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--of-rounds", "64"], "--participation"),
        (["--everybody-sends"], "--participation"),
        (["--participation", "poisson"], "--of-rounds"),
        (["--participation", "poisson", "--of-rounds", "3"], "rounds"),
        (["--participation", "fixed", "--of-rounds", "64", "--everybody-sends"], "poisson"),
    ],
)
def test_what_does_not_belong_together_is_refused(capsys, more, message):
    status, text = printed(capsys, *more)
    assert status == 2
    assert message in text


def test_who_sees_the_models_only_is_named_with_the_terms(capsys):
    status, text = printed(
        capsys, "--participation", "poisson", "--of-rounds", "64", "--trust", "model"
    )
    assert status == 0
    assert "model trust, hidden cohorts" in text
    assert MODEL_TERMS in text
    status, text = printed(capsys, "--trust", "model")
    assert status == 2
    assert "--participation" in text


def test_a_client_and_one_of_its_examples_are_promised_something_by_the_same_run(capsys):
    status, text = printed(capsys, "--examples", "20")
    client = rq.GaussianRelease(0.5, 8, 4)
    assert status == 0
    assert str(rq.account([client], 1e-5)) in text
    one = replace(rq.account([client.of_one_example(20)], 1e-5), unit="example")
    assert str(one) in text
    for guarantee in (rq.account([client], 1e-5), one):
        assert f"epsilon >= {round_down(guarantee.lower)} under" in text
    status, text = printed(
        capsys, "--examples", "20", "--participation", "poisson", "--of-rounds", "64"
    )
    assert status == 2
    assert "--participation seen" in text
