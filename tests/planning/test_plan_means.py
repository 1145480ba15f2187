"""What a plan does with the length of means: coordinates that it recommends, and what is kept."""

import functools
import json
import math
import re

import pytest

from randquant import cli
from randquant.aggregation import describe_influence
from randquant.planning import MAX_ERROR_RATIO, TOLERATED, Privacy, code
from randquant.planning.planner import plan
from randquant.privacy import account
from randquant.reports import as_json, as_text, display
from randquant.reports.plan import page

MEAN = 0.2
ASKED = (20_000, 1000, 100, 50, 8.0)


@pytest.fixture(scope="module")
def found():
    return plan(*ASKED, privacy=Privacy(bits=1), mechanisms=["stochastic-rounding"], mean_norm=MEAN)


def test_the_knee_is_recommended_and_made(found):
    best, whole = found.recommended, found.entries[0]
    assert best in found.parts
    assert len(found.parts) >= 3
    for part, before in zip(found.parts, [whole, *found.parts], strict=False):
        assert part.bytes_up < before.bytes_up
        assert (
            before.noise.deviation < part.noise.deviation <= MAX_ERROR_RATIO * whole.noise.deviation
        )
        assert part.guarantee.epsilon <= 8
    assert best.noise.deviation <= TOLERATED * whole.noise.deviation
    fewer = [part for part in found.parts if part.coordinates < best.coordinates]
    assert all(part.noise.deviation > TOLERATED * whole.noise.deviation for part in fewer)
    mechanism = found.mechanism
    assert mechanism.size(20_000) == best.coordinates
    assert mechanism.upload_bytes(20_000, 100) == best.bytes_up
    release = mechanism.release(20_000, found.need.participations)
    assert account([release], 1e-5) == best.guarantee


def test_a_number_may_be_given_and_is_calibrated():
    fixed = plan(
        *ASKED,
        privacy=Privacy(bits=1, coordinates=300),
        mechanisms=["stochastic-rounding", "sign-sgd"],
    )
    assert fixed.mechanism.size(20_000) == 300
    assert fixed.parts == []
    with pytest.raises(ValueError, match=r"^Expected coordinates >= 1 and <= 32768, got"):
        plan(*ASKED, mechanisms=["skellam"], privacy=Privacy(coordinates=32_769))
    with pytest.raises(ValueError, match=r"^Expected mean_norm >= 0 and <= 1"):
        plan(*ASKED, mechanisms=["skellam"], mean_norm=1.5)


def test_text_page_and_json_have_the_table(found, capsys):
    text = "\n".join(as_text(found))
    best = found.recommended
    assert f"{best.coordinates:,} *" in text
    assert "has length 0.2" in text
    assert f"coordinates={best.coordinates}" in code(best, found.need)
    assert "Fewer coordinates" in page(found)
    assert f"{best.coordinates:,} coordinates (recommended)" in display(found)
    assert as_json(found)["parts"][0]["coordinates"] == 16_384
    [told] = as_json(found)["hostile"]
    assert told == describe_influence(found.mechanism, found.need.dimension, found.need.cohort)
    assert told in text
    assert told in page(found)
    words = ["plan", "--dimension", "2000", "--population", "1000", "--cohort", "100", "--rounds",
             "50", "--epsilon", "8", "--mechanisms", "skellam", "--bits", "16", "--mean-norm",
             "0.3", "--json"]  # fmt: skip
    assert cli.main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["parts"][0]["coordinates"] == 1024
    assert printed["need"]["mean_norm"] == 0.3
    assert printed["hostile"] == []  # of integer noise no bound is known


# What noise leaves of a round's sure decrease: theory/plan.md, Proposition 1

LENGTH, CLIP = 0.0712, 1.4


@functools.cache
def planned(mean_norm):
    """By integer noise, which is calibrated at once: what is said goes by the noise alone."""
    return plan(
        3840, 1014, 1014, 4, 8.0, 1e-5, privacy=Privacy(bits=20, clip_norm=CLIP),
        mechanisms=["skellam"], mean_norm=mean_norm,
    )  # fmt: skip


def test_what_is_kept_is_said():
    found = planned(LENGTH)
    ratio = found.recommended.noise.length * CLIP / LENGTH
    (said,) = [each for each in found.advice if each.startswith("Of means of norm 0.0712")]
    assert f"the noise is {ratio:.3g} times as long" in said
    assert f"keeps {100 / (1 + ratio**2):.2g} % of the decrease" in said
    assert found.kept == pytest.approx(1 / (1 + ratio**2))
    clients = int(re.search(r"about ([\d,]+) clients", said)[1].replace(",", ""))
    assert clients == math.ceil(3 * ratio * 1014)


@pytest.mark.parametrize("mean_norm", [None, 0.0])
def test_without_a_length_of_means_nothing_is_said_to_be_kept(mean_norm):
    found = planned(mean_norm)
    assert found.kept is None
    assert not any(each.startswith("Of means") for each in found.advice)
