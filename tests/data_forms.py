"""Clients' data in forms that people have them in, and what is the same of all of them."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from randquant.channels import Key
from randquant.local_training import Learner, Work


class Pairs(Dataset):
    """As torch's own data sets give examples: what `form` makes of the inputs, a Python number."""

    def __init__(self, features, targets, form=lambda x: x):
        several = features if isinstance(features, tuple) else (features,)
        self.x = [torch.tensor(np.asarray(each)) for each in several]
        self.y, self.form = list(map(int, targets)), form

    def __len__(self):
        return len(self.y)

    def __getitem__(self, place):
        return self.form(*(each[place] for each in self.x)), self.y[place]


class Partition:
    """What a Hugging Face Dataset answers: rows as dicts, the names of its columns."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, place):
        if isinstance(place, str):
            return self.columns[place]
        return {name: column[place] for name, column in self.columns.items()}


def assert_same(problem, other):
    """Two problems have the same updates, whatever clients compute, and the same scores."""
    for local in (Work(), Work(3, 2, 0.1), Work(example_norm=0.1)):
        learners = Learner(problem, local), Learner(other, local)
        first, second = (each.updates([2, 0, 1], Key.from_seed(1))[0] for each in learners)
        assert np.abs(first).max() > 1e-3
        assert np.abs(first - second).max() < 1e-6
    for client in (None, 1):
        found, wanted = (each.evaluate(client) for each in learners)
        assert found.accuracy == wanted.accuracy
        assert found.loss == pytest.approx(wanted.loss, rel=1e-6)
