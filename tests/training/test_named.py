"""Problems of built-in data sets and models."""

from randquant.training import functions
from randquant.training.config import TrainConfig
from randquant.training.named import named_problem


def changed(config, **changes):
    return config.changed(**changes)


def test_public_examples_are_counted_whatever_is_trained():
    """Without the number, a report would say that no guarantee covers the features."""
    config = TrainConfig.of("breast-cancer", "softmax", "rqm", population=12, cohort=4)
    assert named_problem(config).public == 46
    assert named_problem(changed(config, parts=("*.bias",))).public == 46
    assert functions.problem_by_function(changed(config, parts=("*.bias",))).public == 46
