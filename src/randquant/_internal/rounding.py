"""Numbers as text, rounded in the direction in which a bound stays valid."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from randquant._internal import validate


def round_up(value: float, digits: int = 6, *, grouped: bool = False) -> str:
    """Format a finite number with `digits` significant digits, never below its value.

    Args:
        value: a finite number.
        digits: number of significant digits.
        grouped: whether to separate thousands with commas.

    Example:
        >>> round_up(1.2345671), round_up(0.1), round_up(152345.6, grouped=True)
        ('1.23457', '0.100001', '152,346')
    """
    return _rounded(value, ROUND_CEILING, digits, grouped)


def round_down(value: float, digits: int = 6, *, grouped: bool = False) -> str:
    """Format a finite number with `digits` significant digits, never above its value.

    Args: as in `round_up`.

    Example:
        >>> round_down(1.2345678), round_down(152345.6, grouped=True)
        ('1.23456', '152,345')
    """
    return _rounded(value, ROUND_FLOOR, digits, grouped)


def _rounded(value: float, rounding: str, digits: int, grouped: bool) -> str:
    # Decimal(float) is exact, so this rounds the real number, not its repr.
    context = Context(prec=validate.whole("digits", digits, low=1), rounding=rounding)
    exact = value if isinstance(value, Decimal) else Decimal(validate.number(value))
    rounded = context.normalize(context.plus(exact))
    # Very small and very large numbers are hard to read without an exponent.
    if rounded != 0 and not Decimal("1e-4") <= abs(rounded) < Decimal("1e9"):
        return f"{rounded:e}"
    return f"{rounded:,f}" if grouped else f"{rounded:f}"
