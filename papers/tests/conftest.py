"""Hooks and fixtures of the product's tests, and runs that are trained in the test's process."""

import contextlib

import pytest
from everywhere import (  # noqa: F401 - hooks and fixtures
    browser,
    pytest_collect_file,
    pytest_collection_finish,
    pytest_itemcollected,
    pytest_runtest_call,
    pytest_runtest_setup,
    steady_examples,
    written_tolerances,
)


class InProcess:
    """Takes the place of `Workers`: trains each run when it is waited for, in this process."""

    def __init__(self, jobs, on_round):
        self.on_round, self.training, self.free = on_round, [], True

    def begin(self, folder, config):
        self.training.append(folder)
        self.config = config
        self.free = False

    def wait(self):
        from randquant_papers.sweep import workers

        ended = workers._trained(self.training[0], self.config, self)
        self.training, self.free = [], True
        return [ended]

    def send(self, message):
        self.on_round(*message)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@pytest.fixture(scope="session")
def trained_here():
    """A context in which sweeps train here: another process would import torch for seconds."""
    from randquant_papers import experiment
    from randquant_papers.sweep.conductor import conduct

    @contextlib.contextmanager
    def context():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(experiment, "Workers", InProcess)
            patch.setitem(conduct.__globals__, "Workers", InProcess)
            yield

    return context


@pytest.fixture
def in_process(trained_here):
    """Experiments and sweeps train here."""
    with trained_here():
        yield
