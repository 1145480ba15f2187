"""What holds for the tests of both packages: steady examples and draws, tolerances, a browser.

`make test` draws the same examples each time, `make explore` new ones.
"""

import gc
import os
import random
import sys
from collections import Counter

import numpy as np
import pytest
from _pytest.doctest import DoctestModule
from browsing import chromium
from hypothesis import Phase, settings
from hypothesis.internal.conjecture import providers
from tolerances import watched

settings.register_profile("steady", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("explore", max_examples=500, deadline=None)
# A mutant is as dead without the smallest example.
quickly = (Phase.explicit, Phase.generate)
settings.register_profile("mutants", derandomize=True, deadline=None, phases=quickly)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# What is imported and collected stays to the end: a million objects that are not looked through
# again and again for what may be forgotten.
gc.disable()


@pytest.fixture(scope="session", autouse=True)
def steady_examples():
    """The same examples in whatever order tests run, except in `make explore`.

    Hypothesis draws constants that it finds in the modules imported so far: examples would depend
    on which tests a worker has run before, and a failure could not be had again. It has no setting
    for that.
    """
    with pytest.MonkeyPatch.context() as patch:
        if settings.get_current_profile_name() != "explore":
            no_constants = providers.Constants()
            patch.setattr(providers, "_get_local_constants", lambda: no_constants)
        yield


@pytest.fixture(scope="session", autouse=True)
def written_tolerances():
    """pytest.approx refuses a default absolute tolerance that is wider than the relative one.

    Whether it is depends on numbers that are computed, so no reading of the tests finds it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest, "approx", watched(pytest.approx))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Examples in docstrings are those of the package; tests have none."""
    return [each for each in (yield) if not isinstance(each, DoctestModule)]


def same_draws():
    """Seeds what a process draws from, which the tests before have used: models without a seed."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    same_draws()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    same_draws()


_cases: Counter[object] = Counter()


def pytest_itemcollected(item):
    """The first cases of a test that is `slow(after=first)` are as usual."""
    marks = [mark for mark in item.own_markers if mark.name == "slow" and mark.kwargs]
    for mark in marks:
        _cases[item.function] += 1
        if _cases[item.function] <= mark.kwargs["after"]:
            item.own_markers.remove(mark)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def browser():
    """A browser of playwright, where there is one."""
    api = pytest.importorskip("playwright.sync_api")
    program = chromium()
    if program is None:
        pytest.skip("needs Chromium, and none is installed")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program)
        yield opened
        opened.close()
