"""The text of rounded numbers: digits, exponents, thousands."""

import pytest

from randquant._internal.rounding import round_down, round_up


@pytest.mark.parametrize(
    ("value", "above", "below"),
    [
        (0.0, "0", "0"), (1.0, "1", "1"), (-1.0, "-1", "-1"), (1.23456789, "1.23457", "1.23456"),
        (-1.23456789, "-1.23456", "-1.23457"), (0.0001, "0.000100001", "0.0001"),
        (0.00012345678, "0.000123457", "0.000123456"), (9.5e-5, "9.50001e-5", "9.5e-5"),
        (-(2.0**-22), "-2.38418e-7", "-2.38419e-7"), (123456789.0, "123457000", "123456000"),
        (999999999.0, "1e+9", "999999000"), (1e9, "1e+9", "1e+9"), (2.5e9, "2.5e+9", "2.5e+9"),
    ],
)  # fmt: skip
def test_six_digits_and_an_exponent_beyond_a_billion_or_a_ten_thousandth(value, above, below):
    assert round_up(value) == above
    assert round_down(value) == below
