"""No test depends on those before it: what conftest.py sets up for all of them."""

import os
import random

import numpy as np
import pytest
import torch
from hypothesis.internal.conjecture import providers


@pytest.mark.parametrize("turn", [1, 2])
def test_the_generators_of_the_process_begin_alike(turn):
    """The first turn draws from them, and the second finds them as the first did."""
    assert random.random() == random.Random(0).random()
    assert np.random.random() == np.random.RandomState(0).random()  # noqa: NPY002
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(0))


@pytest.mark.skipif("HYPOTHESIS_PROFILE" in os.environ, reason="`make explore` draws new ones")
def test_examples_are_made_of_no_number_of_a_module():
    """Otherwise they would change with the modules that are imported, and those with the order."""
    assert len(providers.HypothesisProvider(None)._local_constants) == 0
