from pathlib import Path

import numpy as np
import pytest
from tolerances import careless

FILES = sorted(Path(__file__).parent.rglob("*.py"))


def test_no_test_leans_on_a_tolerance_that_nobody_wrote():
    found = [
        f"{path.name}:{line}: {code}" for path in FILES for line, code in careless(path.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "np.isclose(a, b)",
        "np.allclose(a, b, rtol=1e-9)",
        "torch.allclose(a, b)",
    ],
)
def test_careless_calls_are_found(code):
    assert [line for line, _ in careless(code)] == [1]


@pytest.mark.parametrize("expected", [5e-14, [1.0, 1e-9], {"a": 1e-9}, np.array([1e-30])])
def test_computed_expectations_are_checked_while_tests_run(expected):
    with pytest.raises(AssertionError, match="abs="):
        pytest.approx(expected, rel=1e-4)
    assert expected == pytest.approx(expected, rel=1e-4, abs=0)


def test_expectations_that_are_not_tiny_are_as_ever():
    assert pytest.approx(0.3) == 0.1 + 0.2
    assert np.array([0.0, 1.0]) == pytest.approx([0, 1])
    assert pytest.approx(2.0, rel=1e-9, abs=0) != 2.0 + 1e-8
