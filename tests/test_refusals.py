"""Whatever is given to what users call, the answer is a result or one sentence of ours."""

from __future__ import annotations

import pytest
from refusals import CALLS, answer, wrong_values


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Some of the wrong values are good names of files, which are then written."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", CALLS)
def test_the_right_values_are_accepted(name):
    """Otherwise wrong values would be refused for another reason."""
    CALLS[name].function(**CALLS[name].with_values())


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", CALLS)
def test_every_wrong_value_is_refused_in_a_sentence(name):
    for argument in CALLS[name].values:
        for what, value in wrong_values().items():
            assert answer(CALLS[name], argument, value) == "", f"{argument} = {what}"


def test_a_raw_answer_is_found_out():
    call = CALLS["rqm"]
    for error in (AttributeError("no"), ValueError("too many values"), ZeroDivisionError()):

        def raises(error=error, **values):
            raise error

        assert answer(type(call)("x", raises, call.values), "clip", 1.0).startswith(
            type(error).__name__
        )
