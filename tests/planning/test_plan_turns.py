"""Under local trust a plan lets clients take turns where that has the least error."""

import pytest

from randquant.planning import Candidate, DecodedError, Privacy, planner
from randquant.planning.planner import plan
from randquant.privacy import account
from randquant.reports.plan import figures

ASKED = (100, 600, 600, 6, 8.0, 1e-6)


@pytest.fixture(scope="module")
def turns():
    return plan(*ASKED, trust="local", mechanisms=["rank"])


def test_their_guarantee_and_error_are_those_of_one_round_and_of_no_more(turns):
    first, second = turns.entries
    assert turns.recommended is first
    assert (first.once, second.once) == (100, None)
    assert second.noise.relative > 2 * first.noise.relative
    assert (first.bytes_run, second.bytes_run) == (600 * 2, 3600 * 2)  # once, not six times
    assert [s.label for s in figures(turns)[0].series] == ["rank, one round each", "rank"]
    mechanism = turns.mechanism
    once = account([mechanism.release(100, 1)], 1e-6)
    assert once == turns.recommended.guarantee
    assert once.epsilon <= 8
    assert account([mechanism.release(100, 6)], 1e-6).epsilon > 40


@pytest.mark.parametrize(("population", "rounds"), [(7, 3), (11, 4), (9, 5), (600, 6)])
def test_no_client_takes_a_second_turn_where_rounds_do_not_divide_them(
    population, rounds, monkeypatch
):
    def calibrated(name, need, near):
        return Candidate(name, {}, noise=DecodedError(1.0, None, 1.0, 1.0))

    monkeypatch.setattr(planner, "_entry", calibrated)
    found = plan(8, population, population, rounds, 6.0, 1e-5, trust="local", mechanisms=["rank"])
    (once,) = [entry.once for entry in found.entries if entry.once is not None]
    assert once * rounds <= population < (once + 1) * rounds


def test_who_needs_every_client_in_every_round_gets_no_turns():
    asked = plan(*ASKED, trust="local", mechanisms=["rank"], privacy=Privacy(max_participations=6))
    assert [entry.once for entry in asked.entries] == [None]
    assert "instead of" not in " ".join(asked.advice)
