"""Cases of a test that `make test` leaves to `make test-all`, beside some that it has."""

import pytest


def slow(*cases):
    """Each of them, a tuple of arguments or the only one, marked as `slow`."""
    arguments = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=pytest.mark.slow) for case in arguments]
