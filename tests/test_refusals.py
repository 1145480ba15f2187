"""Whatever is given to what users call, the answer is a result or one sentence of ours."""

from __future__ import annotations

import pytest
from refusals import CALLS, answer, wrong_values

import randquant as rq


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Some of the wrong values are good names of files, which are then written."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.seldom(1)
@pytest.mark.parametrize("name", CALLS)
def test_the_right_values_are_accepted(name):
    """Otherwise wrong values would be refused for another reason."""
    CALLS[name].function(**CALLS[name].with_values())


@pytest.mark.seldom(1)
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


def test_a_channel_is_no_release_and_the_sentence_says_what_to_build():
    channel = rq.rqm(clip=1.5, margin=1.5, levels=4, keep=0.42)
    with pytest.raises(
        TypeError, match=r"got a Channel, .*: build rq.ChannelRelease\(channel, dim"
    ):
        rq.account([channel], delta=1e-5)
    with pytest.raises(TypeError, match="Expected each release to be a release, such as"):
        rq.account([rq.certify(channel)], delta=1e-5)  # type: ignore[list-item]
