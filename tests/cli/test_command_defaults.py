"""What a mechanism chooses by itself is printed, with how to turn it off, wherever it decides."""

import pytest
from command_line import as_json, printed

from randquant.mechanisms import build, channel_mechanisms

PBM = "--clip 1 --theta .35 --trials 15"
NOTE = (
    "pbm has mixing=2^-20 by default (share of codes drawn evenly; 0 is PBM as published): "
    "set mixing=0 (--mixing 0) to turn it off"
)
GIVEN = "pbm clip=1 theta=.35 trials=15"
COMMANDS = {
    "certify": f"certify pbm {PBM} --order 32",
    "sums": f"certify pbm {PBM} --order 2 --clients 3",
    "account": f"account pbm {PBM} --dimension 10 --rounds 2",
    "audit": f"audit pbm {PBM} --audit-trials 1000",
    "compare": ["compare", "--channel", GIVEN],
    "tuned": "compare --clip 1 --bits 6 --epsilon 8 --mechanisms pbm",
    "plan": "plan --dimension 3 --population 9 --cohort 9 --rounds 1 --epsilon 8 --bits 6 "
    "--trust local --mechanisms pbm",
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_mixing_that_nobody_asked_for_is_printed_with_how_to_turn_it_off(capsys, command):
    assert printed(capsys, command).split("\n").count(NOTE) == 1
    assert as_json(capsys, command)["notes"] == [NOTE]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "command",
    [
        f"certify pbm {PBM} --order 32 --mixing 0",  # turned off
        f"certify pbm {PBM} --order 32 --mixing 1e-6",  # asked for
        "certify pbm --clip 1 --theta .25 --trials 15 --order 32",  # no code is so rare
        "certify qmgeo --clip 1 --levels 4 --p .5",  # as published unless asked
        "account skellam --clip-norm 1 --noise-multiplier 8 --dimension 10 --rounds 1 --cohort 5",
    ],
)
def test_nothing_is_said_where_nothing_was_chosen(capsys, command):
    assert "by default" not in printed(capsys, command)
    assert as_json(capsys, command)["notes"] == []


@pytest.mark.parametrize("theta", [0.05, 0.25, 0.3, 0.35, 0.45, 0.4999, 0.5])
@pytest.mark.parametrize("trials", [1, 15, 36, 37, 255])
def test_the_note_is_there_exactly_where_the_channel_is_another_one(theta, trials):
    given = {"clip": 1.0, "theta": theta, "trials": trials}
    differs = build("pbm", given) != build("pbm", {**given, "mixing": 0.0})
    assert bool(channel_mechanisms()["pbm"].notes(given)) is differs


def test_every_default_of_none_that_a_channel_s_constructor_fills_in_is_told():
    """A number that is None unless given is chosen by the constructor: its record says which."""
    chosen = {
        (name, parameter.name)
        for name, record in channel_mechanisms().items()
        for parameter in record.signature.values()
        if parameter.default is None and parameter.annotation == "float | None"
    }
    # The reach is where a search looks for levels, which are printed, not a change of a mechanism.
    assert chosen == {("pbm", "mixing"), ("optm", "reach"), ("optimal", "reach")}
