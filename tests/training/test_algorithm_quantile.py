"""A clipping threshold that follows a private quantile: trained, accounted and resumed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import interrupted
import numpy as np
import pytest

from randquant.aggregation import ClippedSGD
from randquant.aggregation.alongside import Alongside, QuantileClip
from randquant.aggregation.vector import VectorMechanism
from randquant.channels.keys import Key
from randquant.mechanisms.randomized_quantization import stochastic_rounding
from randquant.privacy.accounting.cohorts import HiddenCohorts
from randquant.reports import run_pictures as pictures
from randquant.training.cohort import collector
from randquant.training.config import TrainConfig, check_config
from randquant.training.runs.setup import prepare

NOISY = stochastic_rounding(clip=0.005, levels=2, margin=0.0005)
QUANTILE = TrainConfig.of(
    "digits", "softmax", "stochastic-rounding", {"clip": 0.005, "levels": 2, "margin": 0.0005},
    population=60, cohort=20, rounds=4, trust="aggregate", clip_norm=0.05, clip_quantile=0.5,
    checkpoint_every=1, threads=1,
)  # fmt: skip
PLAIN = QUANTILE.changed(mechanism="clipped-sgd", parameters={"clip_norm": 0.05},
                            trust=None, clip_norm=None, clip_quantile=None)  # fmt: skip


def test_one_more_coordinate_is_accounted_and_the_rest_is_as_without():
    noise = {"mechanism": "local-gaussian", "trust": None, "clip_norm": None,
             "parameters": {"clip_norm": 0.05, "noise_multiplier": 2.0}}  # fmt: skip
    config, key = QUANTILE.changed(**noise), Key.from_seed(0)
    plain, moving = (
        prepare(config.changed(clip_quantile=None), key),
        prepare(config, key),
    )
    assert moving.sent == plain.sent + 1 == 651
    releases = [prepared.schedule.ledger.release(4) for prepared in (plain, moving)]
    assert [each.releases for each in releases if each is not None] == [4 * 650, 4 * 651]
    assert moving.mechanism == plain.mechanism


@pytest.mark.parametrize("start", [0.05, 2.0])
def test_without_noise_the_threshold_goes_to_the_median_and_the_mean_is_of_clipped_updates(start):
    learner = prepare(PLAIN, Key.from_seed(0)).learner
    learner.load(learner.parameters())
    cohort, key, threshold = list(range(60)), Key.from_seed(1), start
    updates, _ = learner.updates(cohort, key)
    norms = np.linalg.norm(updates.astype(np.float64), axis=1)
    with ThreadPoolExecutor(1) as pool:
        collect = collector(
            learner, ClippedSGD(start), pool, 1, None, Alongside(start, clip=QuantileClip(0.5))
        )
        for number in range(30):
            before, collected = threshold, collect(cohort, key.fold_in(number), 0, threshold)
            threshold = collected.threshold
    assert 0.8 < threshold / np.median(norms) < 1.25
    clipped = updates * np.minimum(1, before / norms)[:, None]
    np.testing.assert_allclose(collected.mean, clipped.mean(axis=0), atol=1e-6 * before)


def test_the_threshold_moves_from_round_to_round_and_is_on_the_page(tmp_path):
    whole = interrupted.whole(tmp_path / "whole", QUANTILE)
    thresholds = [metrics.threshold for metrics in whole.metrics]
    assert thresholds[0] == 0.05
    assert len(set(thresholds)) == 4
    [chart] = [c for c in pictures.training(whole, None) if "Clipping threshold" in c.title]
    assert [y for _, y in chart.lines[0].points] == pytest.approx(thresholds, rel=1e-3, abs=0)


def test_what_has_no_norm_of_one_clients_vector_is_refused():
    with pytest.raises(ValueError, match="with clip_quantile"):
        check_config(QUANTILE.changed(unit="example"))


def test_a_mechanism_that_clips_coordinates_is_refused():
    config = QUANTILE.changed(clip_norm=None)
    with pytest.raises(ValueError, match="Expected a clip_norm with clip_quantile"):
        prepare(config, Key.from_seed(0))


def test_absent_clients_send_zeros_of_the_same_size():
    hidden = HiddenCohorts("poisson", population=6, cohort=2, rounds=1)
    mechanism = VectorMechanism(NOISY, 0.05, "aggregate", 6)
    learner = prepare(PLAIN, Key.from_seed(0)).learner
    with ThreadPoolExecutor(1) as pool:
        collect = collector(
            learner, mechanism, pool, 1, hidden, Alongside(0.05, clip=QuantileClip())
        )
        collected = collect([], Key.from_seed(2), 0, 0.05)
    assert collected.mean.shape == (650,)
    assert collected.threshold not in (None, 0.05)
