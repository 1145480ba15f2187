"""Models of several inputs, with logits in their output, and of other floating-point types."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from by_name import train
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from randquant.aggregation import ClippedSGD
from randquant.channels.keys import Key
from randquant.training.client import Learner
from randquant.training.clients import check_public
from randquant.training.problem import problem_of
from randquant.training.work import Work

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype(np.float32)
MASK = RNG.integers(0, 2, (30, 4))
Y = (X[:, 0] > 0).astype(np.int64)
PARTS = (slice(0, 12), slice(12, 20), slice(20, 30))
PLAIN = ClippedSGD(clip_norm=1.0)
LOCALS = (Work(), Work(3, 2, 0.1), Work(example_norm=0.1))


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


class Pairs(Dataset):
    def __init__(self, part, form):
        self.part, self.form = part, form

    def __len__(self):
        return len(X[self.part])

    def __getitem__(self, place):
        x, mask = torch.from_numpy(X[self.part][place]), torch.from_numpy(MASK[self.part][place])
        return self.form(x, mask), int(Y[self.part][place])


class Partition:
    """As a tokenised Hugging Face Dataset: rows of lists."""

    column_names = ("ids", "mask", "text", "label")

    def __init__(self, part):
        self.part = part

    def __len__(self):
        return len(X[self.part])

    def __getitem__(self, place):
        row = (each[self.part][place].tolist() for each in (X, MASK))
        return {
            **dict(zip(("ids", "mask"), row, strict=True)),
            "text": "",
            "label": 1 * Y[self.part][place],
        }


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
    "data set of tuples": (lambda part: Pairs(part, by_place), None),
    "data set of dicts": (lambda part: Pairs(part, by_name), None),
    "partition": (Partition, NAMED),
}


def plain():
    def both(part):
        return np.stack([X[part], MASK[part].astype(np.float32)], axis=1), Y[part]

    return problem_of(One(), [both(part) for part in PARTS], test=both(slice(None)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrap", [lambda logits: logits, Scores])
def test_several_inputs_give_what_one_tensor_of_both_gives(form, wrap):
    build, columns = FORMS[form]
    clients = [build(part) for part in PARTS]
    ours = problem_of(Two(wrap), clients, test=build(slice(None)), columns=columns)
    theirs = plain()
    assert ours.trial.classes == 2
    for local in LOCALS:
        mine, other = Learner(ours, local), Learner(theirs, local)
        updates = [each.updates([2, 0, 1], Key.from_seed(1))[0] for each in (mine, other)]
        assert np.abs(updates[0]).max() > 1e-3
        assert np.abs(updates[0] - updates[1]).max() < 1e-6
    assert mine.evaluate().accuracy == other.evaluate().accuracy
    assert mine.evaluate().loss == pytest.approx(other.evaluate().loss, rel=1e-6)
    assert mine.evaluate(1).loss == pytest.approx(other.evaluate(1).loss, rel=1e-6)


def test_statistics_of_public_examples_of_several_inputs():
    class Normed(Two):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, ids, mask):
            return super().forward(self.norm(ids), mask)

    public = (by_name(np.flip(X).copy(), MASK), Y)
    clients = [FORMS["dict"][0](part) for part in PARTS]
    problem = problem_of(Normed(), clients, buffers="server", public=public)
    model = Learner(problem).trained_model()
    assert np.allclose(model.norm.running_mean, np.flip(X).mean(axis=0), atol=1e-6)
    with pytest.raises(ValueError, match="that no client holds, got example 12 of client 0's"):
        check_public(
            problem.clients.table, problem_of(Normed(), clients[1:], buffers="frozen").clients
        )


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
    "three tensors": ((X, MASK, Y), TypeError, r"\(\(a, b\), targets\)\), got a tuple of 3"),
    "shapes": ([((X[0], MASK[0]), 0), ((X[0], MASK[0, :3]), 1)], ValueError,
               r"got \(4,\) and \(3,\), \(4,\) and \(4,\)"),
    "kinds": ([((X[0], MASK[0]), 0), (X[0], 1)], ValueError, "Expected examples of one shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_inputs_have_a_sentence(name):
    data, kind, sentence = BAD[name]
    with pytest.raises(kind, match=sentence):
        problem_of(Two(), [data])


def test_clients_of_other_inputs_are_named():
    clients = {"a": FORMS["dict"][0](PARTS[0]), "b": FORMS["tuple"][0](PARTS[1])}
    with pytest.raises(ValueError, match=r"Client b: .* as those of client a, .*ids"):
        problem_of(Two(), clients)
    with pytest.raises(TypeError, match="the data of several clients, got a pair"):
        problem_of(Two(), ((X, MASK), Y))


def test_another_mask_is_other_data_for_a_run_that_goes_on(tmp_path):
    folder, clients = tmp_path / "run", [FORMS["tuple"][0](part) for part in PARTS]
    options = {"mechanism": PLAIN, "rounds": 1, "folder": folder, "progress": False}
    train(Two(), clients, **options)
    train(Two(), clients, **options)
    changed = [((x, 1 - mask), y) for (x, mask), y in clients]
    with pytest.raises(ValueError, match="Expected the clients' data that the run"):
        train(Two(), changed, **options)


@pytest.mark.parametrize(
    "kind", [torch.float64, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
)
def test_other_floating_point_types_are_trained_in_float32_and_returned_as_they_were(kind):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).to(kind)
    model.register_buffer("steps", torch.tensor([3]))
    before = copy.deepcopy(model.state_dict())
    clients, features = [(X[part], Y[part]) for part in PARTS], torch.from_numpy(X).to(kind)
    options = {"test": (X, Y), "mechanism": PLAIN, "rounds": 3, "seed": 0, "progress": False}
    run, same = (train(each, clients, **options) for each in (model, copy.deepcopy(model).float()))
    assert run.history[-1].mean == same.history[-1].mean  # the same bits were sent
    assert {parameter.dtype for parameter in run.model.parameters()} == {kind}
    assert run.model.steps.dtype == torch.int64
    assert run.model(features).dtype == kind
    assert torch.allclose(run.model(features).float(), same.model(torch.from_numpy(X)), atol=0.05)
    assert all(torch.equal(before[name], part) for name, part in model.state_dict().items())
    assert run.loss == pytest.approx(same.loss, rel=0.02)


def test_parameters_of_another_type_beside_float32_are_refused():
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2).double())
    with pytest.raises(
        ValueError, match=r"as others of the model are, got 1.weight in .*float\(\)"
    ):
        problem_of(model, [(X, Y)])


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
        problem_of(nn.Sequential(nn.Linear(4, 1)), [(X, targets)], loss=loss)
    good = BINARY.astype(np.float32)
    assert problem_of(nn.Sequential(nn.Linear(4, 1)), [(X, good)], loss=loss).trial.classes is None
