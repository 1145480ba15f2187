"""How many coordinates a plan recommends to send, and what its table says."""

import json

import pytest

from randquant import cli
from randquant.aggregation.hostile import one_client
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


@pytest.mark.seldom
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
    [told] = as_json(found)["hostile"]
    assert told == one_client(found.mechanism, found.need.dimension, found.need.cohort)
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
