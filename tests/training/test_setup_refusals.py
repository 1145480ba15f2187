"""What cannot be trained is refused before anything is trained or written; all else trains."""

import itertools

import pytest

from randquant.aggregation.registry import all_mechanisms
from randquant.training.config import TrainConfig
from randquant.training.runs import execution as runs

PARAMETERS = {name: each.example for name, each in all_mechanisms().items() if each.example}
TRUSTS = (None, "local", "aggregate", "central")
WORKS = {name: dict.fromkeys(each.trusts, True) for name, each in all_mechanisms().items()}
"""Under which trust each works; the examples have even levels, whose sums decode."""


def config(name, trust, sampling):
    return TrainConfig.of(
        "breast-cancer", "softmax", name, PARAMETERS[name], population=6, cohort=2, rounds=3,
        trust=trust, sampling=sampling, evaluate_every=3, threads=1, seed=1,
    )  # fmt: skip


def can_work(name, trust, sampling):
    known = WORKS[name]
    effective = trust or next(iter(known), "none")
    if trust and not known.get(trust):
        return False
    return not (sampling == "poisson" and effective == "aggregate")


def test_every_mechanism_is_looked_at():
    assert PARAMETERS.keys() == all_mechanisms().keys() - {"channel-file"}


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_cannot_work_is_refused_before_anything_is_written(name, tmp_path):
    for trust, sampling in itertools.product(TRUSTS, ("fixed", "poisson")):
        if can_work(name, trust, sampling):
            continue
        folder = tmp_path / f"{trust}-{sampling}"
        with pytest.raises(ValueError, match="trust"):
            runs.create(
                folder, config(name, trust, sampling).changed(baseline=True), overwrite=False
            )
        assert not folder.exists()


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.slow
def test_what_is_not_refused_trains(name, tmp_path, monkeypatch):
    """Poisson rounds have any number of clients, and none of them stops a run."""
    for sampling in ("fixed", "poisson"):
        if not can_work(name, None, sampling):
            continue
        folder = tmp_path / sampling
        runs.create(folder, config(name, None, sampling), overwrite=False)
        run = runs.execute(folder)
        assert run.summary.rounds == 3
        sizes = {metrics.bytes_up // run.summary.bytes_per_upload for metrics in run.metrics}
        assert sizes == {2} if sampling == "fixed" else len(sizes) > 1
