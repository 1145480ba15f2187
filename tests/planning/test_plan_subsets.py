"""How many coordinates a plan recommends to send, and what its table says."""

import json
import math
import re

import numpy as np
import pytest

from randquant import cli
from randquant.planning.plan.planner import plan
from randquant.planning.plan.record import code
from randquant.planning.plan.subsets import FARTHEST, TOLERATED
from randquant.planning.privacy import Privacy
from randquant.privacy.accounting.accountant import account
from randquant.reports.notebook import display
from randquant.reports.plan import as_json, as_text, page

MEAN = 0.2
ASKED = (20_000, 1000, 100, 50, 8.0)


@pytest.fixture(scope="module")
def found():
    return plan(*ASKED, privacy=Privacy(bits=1), mechanisms=["stochastic-rounding"], mean_norm=MEAN)


def test_parts_meet_the_same_target_with_fewer_bytes_and_a_larger_error(found):
    whole = found.entries[0]
    rows = [whole, *found.parts]
    assert len(found.parts) >= 3
    for part, before in zip(rows[1:], rows, strict=False):
        assert part.bytes_up < before.bytes_up
        assert part.noise.deviation > before.noise.deviation
        assert part.guarantee.epsilon <= 8
    assert rows[-1].noise.deviation <= FARTHEST * whole.noise.deviation


def test_the_knee_is_recommended_and_made(found):
    best, whole = found.recommended, found.entries[0]
    assert best in found.parts
    assert best.noise.deviation <= TOLERATED * whole.noise.deviation
    fewer = [part for part in found.parts if part.coordinates < best.coordinates]
    assert all(part.noise.deviation > TOLERATED * whole.noise.deviation for part in fewer)
    mechanism = found.mechanism
    assert mechanism.size(20_000) == best.coordinates
    assert mechanism.upload_bytes(20_000, 100) == best.bytes_up
    release = mechanism.release(20_000, found.need.participations)
    assert account([release], 1e-5) == best.guarantee


def test_the_error_is_that_of_the_formula(found):
    """Proposition 4: the noise of all coordinates with its excess, and what was left out."""
    whole = found.entries[0].noise.deviation
    for part in found.parts:
        times = 32_768 / part.coordinates
        left_out = (times - 1) * MEAN**2 / 32_768
        noise = math.sqrt(part.noise.deviation**2 - left_out)
        assert whole < noise < whole * (1 + 0.01 * times)
        assert part.noise.deviation > math.sqrt(whole**2 + left_out)


def test_integer_noise_has_its_rows_where_it_can_be_built():
    """Fewer coordinates take fewer bits of a code: with few bits not all can be sent."""
    names = ["skellam", "stochastic-rounding"]
    both = plan(*ASKED, privacy=Privacy(bits=14), mechanisms=names, mean_norm=MEAN)
    noise, bits = (
        {part.coordinates: part for part in both.parts if part.mechanism == name} for name in names
    )
    alike = bits.keys() & noise.keys()
    assert len(alike) >= 2
    for count in alike:
        assert noise[count].guarantee.epsilon <= 8
        assert noise[count].bytes_up > bits[count].bytes_up
        left_out = (32_768 / count - 1) * MEAN**2 / 32_768
        assert noise[count].noise.deviation > math.sqrt(left_out)
    found = [*both.entries, *both.parts]
    least = min(part.noise.deviation for part in both.entries if part.noise is not None)
    near = [part for part in found if part.noise and part.noise.deviation <= TOLERATED * least]
    assert both.recommended.bytes_up <= min(part.bytes_up for part in near)
    assert f"skellam              {max(alike):,}" in "\n".join(as_text(both))


def test_without_the_length_of_the_mean_all_are_sent(found):
    silent = plan(*ASKED, privacy=Privacy(bits=1), mechanisms=["stochastic-rounding"])
    assert silent.parts == []
    assert silent.recommended.coordinates is None
    longest = plan(
        *ASKED, privacy=Privacy(bits=1), mechanisms=["stochastic-rounding"], mean_norm=1.0
    )
    assert longest.recommended.bytes_up > found.recommended.bytes_up


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
    assert as_json(found)["parts"][0].coordinates == 16_384
    words = ["plan", "--dimension", "2000", "--population", "1000", "--cohort", "100", "--rounds",
             "50", "--epsilon", "8", "--mechanisms", "skellam", "--bits", "16", "--mean-norm",
             "0.3", "--json"]  # fmt: skip
    assert cli.main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["parts"][0]["coordinates"] == 1024
    assert printed["need"]["mean_norm"] == 0.3


def test_what_a_round_keeps_is_said_where_the_length_of_means_is_known(found):
    """Proposition 1: 1/(1 + r²) is what the best step size leaves of a quadratic's decrease."""
    r = found.recommended.noise.length / MEAN
    steps = np.linspace(1e-4, 1, 20_001)  # f = x²/2 at x = 1, noise of standard deviation r
    left = float((1 - (1 - steps) ** 2 - steps**2 * r**2).max())
    (said,) = [each for each in found.advice if each.startswith("Of means of norm 0.2")]
    assert f"is {r:.3g} times as long" in said
    assert f"keeps {100 * left:.2g} %" in said
    clients = int(re.search(r"about ([\d,]+) clients", said)[1].replace(",", ""))
    assert clients == math.ceil(3 * r * 1000)
    assert not any(
        "Of means" in each
        for each in plan(
            650, 200, 200, 50, 8.0, 1e-5, privacy=Privacy(bits=16), mechanisms=["skellam"]
        ).advice
    )
