"""Figures of a classifier that frequent classes cannot hide: balanced accuracy, and AUC."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata
from torch import Tensor

MIN_IMBALANCE_RATIO = 1.5
"""Classes are imbalanced if the most frequent has this many times the examples of the rarest.

Test data of equally frequent classes, drawn at random, differ by less; at half as much again,
naming the larger of two classes for all is right for 60 %."""


class ByClass:
    """The outputs of a classifier for test data, batch by batch.

    Args:
        classes: how many; 2 with one binary logit.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._targets: list[np.ndarray] = []
        self._right: list[np.ndarray] = []
        self._scores: list[np.ndarray] = []

    def add(self, output: Tensor, targets: Tensor, right: Tensor) -> None:
        """Add a batch: outputs (n, classes), or binary logits (n,) or (n, 1); the others (n,)."""
        count = len(targets)
        if targets.numel() != count:
            return  # a class at each place, or several tags: no example has one class
        if self._classes == 2:
            logits = output.reshape(count, -1).cpu().double().numpy()
            # Exact differences of float32: a softmax would make ties of scores that differ.
            scores = logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits[:, 0]
            self._scores.append(scores)
        self._targets.append(targets.reshape(-1).round().cpu().numpy())
        self._right.append(right.reshape(-1).cpu().numpy())

    def measured(self) -> tuple[float | None, float | None]:
        """Return `balanced_accuracy` and `auc` of all batches; None where they do not apply."""
        targets = np.concatenate([np.zeros(0), *self._targets]).astype(np.int64)
        # A loss of somebody's own may give a meaning to other labels.
        if not len(targets) or targets.min() < 0 or targets.max() >= self._classes:
            return None, None
        area = auc(targets == 1, np.concatenate(self._scores)) if self._classes == 2 else None
        return balanced_accuracy(targets, np.concatenate(self._right)), area


def balanced_accuracy(targets: np.ndarray, right: np.ndarray) -> float | None:
    """Return the mean of the classes' accuracies, each class counting the same.

    Args:
        targets: (n,) classes from 0.
        right: (n,) whether each prediction is right.

    Returns:
        It, in [0, 1], over the classes that occur; None unless they are imbalanced
        (MIN_IMBALANCE_RATIO). Naming the same class for all has 1 / classes.

    Example:
        >>> balanced_accuracy(np.array([0] * 9 + [1]), np.array([True] * 9 + [False]))
        0.5
    """
    seen = np.bincount(targets)
    occurs = seen > 0
    if seen.max() < MIN_IMBALANCE_RATIO * seen[occurs].min():
        return None
    shares = np.bincount(targets, weights=right)[occurs] / seen[occurs]
    return float(shares.mean())


def auc(positive: np.ndarray, scores: np.ndarray) -> float | None:
    """Return the area under the ROC curve: how often a positive scores above a negative.

    Args:
        positive: (n,) whether each example is of the positive class.
        scores: (n,) larger for what is more likely positive; equal scores count one half.

    Returns:
        It, in [0, 1], where 0.5 tells nothing apart; None if one class is missing, or a score is
        not a number.

    References:
        Hanley and McNeil 1982: it is the Wilcoxon statistic of the ranks.

    Example:
        >>> auc(np.array([False, False, True, True]), np.array([0.1, 0.4, 0.4, 0.8]))
        0.875
    """
    above, below = int(positive.sum()), int((~positive).sum())
    if not above or not below or np.isnan(scores).any():
        return None
    ranks = rankdata(scores)[positive].sum()
    return float((ranks - above * (above + 1) / 2) / (above * below))
