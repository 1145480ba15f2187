"""What a command prints as text is what it prints as JSON: no number is in the text alone."""

import math
import re

import pytest
from command_line import as_json, printed

PAPER = "rqm --clip 1.5 --margin 1.5 --levels 16 --keep 0.42"
NOISE = "skellam --clip-norm 1 --noise-multiplier 2 --cohort 40"
LINES = [
    f"certify {PAPER} --order 8",
    f"certify {PAPER} --order 2 --clients 2",
    f"certify {PAPER} --pair 1.5 -0.7",
    f"account {PAPER} --dimension 650 --rounds 20 --delta 1e-5",
    f"account {NOISE} --dimension 650 --rounds 20 --delta 1e-6",
    f"account {NOISE} --dimension 650 --rounds 20 --neighboring zero_out",
    "design --clip 1 --values -3,-0.5,0.5,3 --epsilon 1",
    "audit stochastic-rounding --clip 1 --levels 2 --margin 2 --dimension 5 --audit-trials 2000",
]
DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?"
NUMBER = re.compile(rf"(?<![\w.])-?{DIGITS}(?![\w.]\d)")


def number(shown):
    return float(shown.replace(",", ""))


def leaves(value):
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    elif isinstance(value, str):
        yield from map(number, NUMBER.findall(value))
    elif value is not None and not isinstance(value, bool):
        yield float(value)


def unit(shown):
    """One in the last place that is shown."""
    mantissa, _, exponent = shown.partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


@pytest.mark.seldom(1)
@pytest.mark.parametrize("line", LINES)
def test_every_number_in_the_text_is_one_of_the_json_on_its_side(line, capsys):
    text, result = printed(capsys, line), as_json(capsys, line)
    known = [*leaves(result), *map(number, re.findall(DIGITS, line))]
    known += [-each for each in known]  # inputs lie within -clip and clip
    known += [100 * result["epsilon_lower"] / result["epsilon"]] if "audited" in text else []
    checked = 0
    for found in re.finditer(r"(<= |>= )?(" + NUMBER.pattern + ")", text):
        bound, shown = found[1], found[2].replace(",", "")
        value, room = number(shown), unit(shown) * (1 + 1e-9)
        near = [each for each in known if math.isfinite(each) and abs(each - value) <= room]
        assert near, (found[0], text)
        if bound == "<= ":
            assert any(each <= value for each in near), (found[0], text)
        if bound == ">= ":
            assert any(each >= value for each in near), (found[0], text)
        checked += 1
    assert checked > 4
