"""Stored runs that are interrupted after a round, to be gone on with."""

import pytest

from randquant.training.runs import execution


def begin(folder, config, last, **options):
    """Create a run, and interrupt it after round `last`."""

    def interrupt(config, metrics):
        if metrics.round == last:
            raise KeyboardInterrupt

    execution.create(folder, config, overwrite=False)
    with pytest.raises(KeyboardInterrupt):
        execution.execute(folder, interrupt, **options)


def whole(folder, config, **options):
    """Create a run, and run it to its end; return the run."""
    execution.create(folder, config, overwrite=False)
    return execution.execute(folder, **options)
