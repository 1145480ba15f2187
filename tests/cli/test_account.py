"""`randquant account`: who sees in which rounds a client takes part."""

import pytest
from command_line import printed, refused

import randquant as rq
from randquant.aggregation import CentralGaussian, LocalGaussian
from randquant.privacy import MODEL_TERMS, HiddenCohorts, run_release

GAUSSIAN = "account gaussian --clip-norm 1 --noise-multiplier 1 --dimension 8 --rounds 4"


def test_hidden_cohorts_are_named_beside_their_figure(capsys):
    """Which figure that is for each relation and draw: `test_account_product.py`."""
    text = printed(capsys, f"{GAUSSIAN} --participation poisson --of-rounds 64")
    absent = rq.GaussianRelease(1.0, 8, 1, neighboring="zero_out")
    rate = 1 / 16 * (1 + 2**-52)
    release = rq.Sampled(rq.GaussianRelease(0.5, 8, 1), rate, 64, absent=absent)
    assert str(rq.account([release], 1e-5)) in text
    assert "hidden cohorts" in text
    assert "nobody learns" in text


def test_who_sees_the_models_only_is_named_with_the_terms(capsys):
    hidden = "--participation poisson --of-rounds 64 --trust model"
    text = printed(capsys, f"{GAUSSIAN} {hidden}")
    assert "model trust, hidden cohorts" in text
    assert MODEL_TERMS in text


def test_a_client_and_one_of_its_examples_are_promised_something_by_the_same_run(capsys):
    text = printed(capsys, f"{GAUSSIAN} --examples 20")
    release = rq.GaussianRelease(0.5, 8, 4)
    client = rq.account([release], 1e-5)
    example = CentralGaussian(None, 1.0, 1.0).example_release(8, 4, "replace_one", 20)
    one = rq.account([example], 1e-5)
    for guarantee in (client, one):
        assert str(guarantee) in text


@pytest.mark.parametrize(("server", "who"), [("true", "the server as much"), ("false", "alone")])
def test_it_is_said_that_a_helper_adds_the_noise(server, who, capsys):
    text = printed(
        capsys, "account helper-noise --clip-norm 1 --noise-multiplier 4 --cohort 5 --dimension 8 "
        f"--rounds 3 --server-noise {server}",
    )  # fmt: skip
    [line] = [line for line in text.splitlines() if line.startswith("Clients add no noise")]
    assert who in line
    assert "nothing holds against the server if the helper leaves out its noise" in line


def test_where_absent_clients_send_nothing_a_server_that_sees_codes_sees_who_takes_part(capsys):
    """`--everybody-sends` is what decides, whatever is usual with such a mechanism."""
    command = "account local-gaussian --clip-norm 1 --noise-multiplier 6 --dimension 8 --rounds 4"
    command += " --participation poisson --of-rounds 64"
    cohorts = HiddenCohorts("poisson", 64, 4, 64, models=False, everybody_sends=True)
    release = run_release(LocalGaussian(1.0, 6.0), 8, 64, cohorts=cohorts)
    text = printed(capsys, f"{command} --everybody-sends")
    assert str(rq.account([release], 1e-5)) in text
    assert "Expected central trust or hidden participation" in refused(capsys, command)
