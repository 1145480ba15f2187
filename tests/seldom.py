"""Cases of a test that `make test` leaves to `make test-all`, beside some that it has."""

import pytest


def seldom(*cases):
    """Each of them, a tuple of arguments or the only one, marked as `seldom`."""
    found = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=pytest.mark.seldom) for case in found]
