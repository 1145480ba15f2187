"""Models of several inputs, with logits in their output, and of other floating-point types."""

import dataclasses

import numpy as np
import pytest
import torch
from data_forms import Pairs, Partition, assert_same
from torch import nn
from torch.nn import functional

from randquant.local_training import make_problem

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype(np.float32)
MASK = RNG.integers(0, 2, (30, 4))
Y = (X[:, 0] > 0).astype(np.int64)
PARTS = (slice(0, 12), slice(12, 20), slice(20, 30))


@dataclasses.dataclass
class Scores:
    """As Hugging Face's models return them."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Two(nn.Module):
    """Takes a tensor and its mask, by place or by name."""

    def __init__(self, wrap=lambda logits: logits):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.wrap = nn.Linear(4, 5), nn.Linear(5, 2), wrap

    def forward(self, ids, mask):
        return self.wrap(self.last(torch.tanh(self.first(ids * mask))))


class One(Two):
    """The same of one tensor that holds both."""

    def forward(self, both):
        return super().forward(both[:, 0], both[:, 1])


def partition(part):
    """As it is tokenised, with a column that is no input."""
    lists = {"ids": X[part].tolist(), "mask": MASK[part].tolist(), "label": Y[part].tolist()}
    return Partition(**lists, text=[""] * len(lists["label"]))


def by_place(x, mask):
    return x, mask


def by_name(x, mask):
    return {"mask": mask, "ids": x}


NAMED = (("mask", "ids"), "label")
FORMS = {
    "tuple": (lambda part: ((X[part], MASK[part]), Y[part]), None),
    "dict": (lambda part: (by_name(X[part], MASK[part]), Y[part]), None),
    "dict of lists": (
        lambda part: ({"ids": X[part].tolist(), "mask": MASK[part].tolist()}, Y[part]),
        None,
    ),
    "dict among columns": (lambda part: {"x": by_name(X[part], MASK[part]), "y": Y[part]}, None),
    "several columns": (lambda part: {"ids": X[part], "mask": MASK[part], "label": Y[part]}, NAMED),
    "data set of tuples": (lambda part: Pairs((X[part], MASK[part]), Y[part], by_place), None),
    "data set of dicts": (lambda part: Pairs((X[part], MASK[part]), Y[part], by_name), None),
    "partition": (partition, NAMED),
}


def plain():
    def both(part):
        return np.stack([X[part], MASK[part].astype(np.float32)], axis=1), Y[part]

    return make_problem(One(), [both(part) for part in PARTS], test=both(slice(None)))


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrap", [lambda logits: logits, Scores])
def test_several_inputs_give_what_one_tensor_of_both_gives(form, wrap):
    build, columns = FORMS[form]
    clients = [build(part) for part in PARTS]
    ours = make_problem(Two(wrap), clients, test=build(slice(None)), columns=columns)
    assert ours.dry_run.classes == 2
    assert_same(ours, plain())


BAD = {
    "list": (([X, MASK[:, :2]], Y), TypeError, r"several inputs of a model are a tuple \(a, b\)"),
    "rows": ((tuple(map(torch.from_numpy, X)), Y), ValueError,
             "got 30 targets for 4 features: .* tuple of tensors is several inputs .* torch.stack"),
    "lengths": (((X, MASK[:7]), Y), ValueError, "got 30 targets for 7 features"),
    "pixels": (((X, MASK.astype(np.uint8)), Y), ValueError, "got uint8"),
    "infinite": (((X, np.full_like(X, np.inf)), Y), ValueError, "Expected finite features"),
    "empty": (({}, Y), ValueError, "got an empty dict"),
    "names": (({"ids": X, "other": MASK}, Y), ValueError,
              r"takes features ids \(n, 4\) in float32, other \(n, 4\) in int64, got TypeError"),
    "one": ((X, Y), ValueError, r"takes features \(n, 4\) in float32, got TypeError.*mask"),
    "three tensors": ((X, MASK, Y), TypeError, r"\(\(a, b\), targets\)\), .*got a tuple of 3"),
    "shapes": ([((X[0], MASK[0]), 0), ((X[0], MASK[0, :3]), 1)], ValueError,
               r"got \(4,\) and \(3,\), \(4,\) and \(4,\)"),
    "kinds": ([((X[0], MASK[0]), 0), (X[0], 1)], ValueError, "Expected examples of one shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_inputs_have_a_sentence(name):
    data, kind, sentence = BAD[name]
    with pytest.raises(kind, match=sentence):
        make_problem(Two(), [data])


BINARY = Y[:, None]


@pytest.mark.parametrize(
    ("loss", "targets", "way"),
    [
        (functional.binary_cross_entropy_with_logits, BINARY, r"targets\.float\(\)"),
        (nn.BCEWithLogitsLoss(), BINARY, r"targets\.float\(\)"),
        (nn.BCEWithLogitsLoss(), Y, r"targets\.reshape\(-1, 1\)\.float\(\)"),
        (nn.BCEWithLogitsLoss(), Y.astype(np.float32), r"targets\.reshape\(-1, 1\)"),
        (functional.huber_loss, BINARY, r"targets\.float\(\)"),
    ],
)
def test_targets_that_a_loss_does_not_take_and_what_to_give(loss, targets, way):
    with pytest.raises(ValueError, match=f"It takes {way}: give such targets"):
        make_problem(nn.Sequential(nn.Linear(4, 1)), [(X, targets)], loss=loss)
    good = BINARY.astype(np.float32)
    assert (
        make_problem(nn.Sequential(nn.Linear(4, 1)), [(X, good)], loss=loss).dry_run.classes is None
    )
