"""Long work says how far it is: honestly, however deep it is, and only to whoever waits."""

from __future__ import annotations

import pytest

from randquant._internal.progress import report, reporting, step


@pytest.fixture
def seen():
    """What is reported; done never passes total, where that is known."""
    reports = []

    def hear(what, done, total):
        assert done >= 0
        assert total == 0 or done <= total
        reports.append((what, done, total))

    with reporting(hear):
        yield reports


def test_reports_go_to_the_nearest_listener_and_nowhere_else(seen):
    inner = []
    with reporting(lambda *each: inner.append(each)):
        report("inside", 1, 2)
    report("outside", 2, 2)
    assert inner == [("inside", 1, 2)]
    assert seen == [("outside", 2, 2)]


def test_a_step_names_what_it_does_and_ends_with_an_error_too(seen):
    def fails():
        with step("pbm", 1, 3):
            report("noise 2", 7, 0)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    report("after", 2, 3)
    assert seen == [("pbm", 1, 3), ("pbm: noise 2", 1, 3), ("after", 2, 3)]
