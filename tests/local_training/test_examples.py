"""Data in every form that people have them in give the same examples."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from data_forms import Pairs, Partition, assert_same
from torch import nn
from torch.utils.data import Subset, TensorDataset

from randquant.channels import Key
from randquant.local_training import Learner, StoredExamples, Work, as_examples, make_problem

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 4)).astype(np.float32), RNG.integers(0, 3, 12)
PARTS = (slice(0, 5), slice(5, 9), slice(9, 12))


def pairs(part, form=lambda x: x):
    return Pairs(X[part], Y[part], form)


def partition(part, features="image", target="label", convert=np.ndarray.tolist, **more):
    return Partition(**{features: convert(X[part]), target: Y[part].tolist(), **more})


def fake_picture():
    return type("Image", (), {"__module__": "PIL.PngImagePlugin"})()


FORMS = {
    "arrays": lambda part: (X[part], Y[part]),
    "tensors": lambda part: (torch.from_numpy(X[part]), torch.from_numpy(Y[part])),
    "needing gradients": lambda part: (torch.from_numpy(X[part]).requires_grad_(), Y[part]),
    "lists": lambda part: (X[part].tolist(), Y[part].tolist()),
    "columns": lambda part: {"x": X[part], "y": Y[part]},
    "tensor data set": lambda part: TensorDataset(*map(torch.from_numpy, (X[part], Y[part]))),
    "data set": pairs,
    "subset": lambda part: Subset(pairs(slice(None)), range(12)[part]),
    "random split": lambda part: Subset(
        TensorDataset(*map(torch.from_numpy, (X, Y))), range(12)[part]
    ),
    "list of pairs": lambda part: list(zip(X[part], Y[part], strict=True)),
    "list of rows": lambda part: [{"x": x, "y": y} for x, y in zip(X[part], Y[part], strict=True)],
    "partition": partition,
    "partition of tensors": lambda part: partition(part, convert=torch.from_numpy),
    "other names": lambda part: partition(part, "img", "labels"),
    "more columns": lambda part: partition(part, writer=["a"] * 12),
}
READ = set(list(FORMS)[6:]) - {"random split"}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_updates(form):
    clients = {f"c{number}": FORMS[form](part) for number, part in enumerate(PARTS)}
    problem = make_problem(model(), clients, test=FORMS[form](slice(None)))
    plain = make_problem(model(), [(X[part], Y[part]) for part in PARTS], test=(X, Y))
    assert problem.clients.sizes.tolist() == [5, 4, 3]
    assert problem.clients.stored != (form in READ)
    assert (problem.dry_run.classes, problem.dry_run.draws) == (3, False)
    assert_same(problem, plain)


def test_columns_are_named_where_they_must_be():
    rows = partition(slice(None), "vector", "digit", writer=["a"] * 12)
    with pytest.raises(ValueError, match=r"got columns vector, digit, writer: say which with"):
        as_examples(rows)
    features, targets = as_examples(rows, ("vector", "digit")).take(np.arange(12))
    assert np.array_equal(features, X)
    assert targets.tolist() == Y.tolist()
    with pytest.raises(ValueError, match="the columns vector, digit, writer, got no picture"):
        as_examples(rows, ("picture", "digit"))
    swapped = as_examples({"label": X, "x": Y}, ("label", "x"))
    assert isinstance(swapped, StoredExamples)
    assert np.array_equal(swapped.features, X)


BAD = {
    "pictures": (lambda: partition(slice(None), convert=lambda x: [fake_picture()] * 12), TypeError,
                 "Client 0: Expected features as numbers, got a PIL image: convert .* ToTensor"),
    "pixels": (lambda: partition(slice(None), convert=lambda x: x.astype(np.uint8)), ValueError,
               "Client 0: Expected features in float32, got uint8"),
    "words": (lambda: partition(slice(None), convert=lambda x: ["a word"] * 12), TypeError,
              "Client 0: Expected features as numbers, got a str"),
    "not pairs": (lambda: list(X), TypeError,
                  "Client 0: Expected examples .* got a ndarray as example 0"),
    "three": (lambda: [(x, 0, 1) for x in X], TypeError, "Client 0: Expected examples"),
    "none": (list, ValueError, "Client 0: Expected at least one example, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_data_sets(name):
    build, kind, sentence = BAD[name]
    with pytest.raises(kind, match=sentence):
        make_problem(model(), [build(), FORMS["partition"](PARTS[0])])


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda d: d.x[0][4].fill_(np.nan), "Client late: Expected finite features"),
        (lambda d: d.y.__setitem__(4, 3), "Client late: Expected labels from 0 to 2, .* got 3"),
        (lambda d: d.y.__setitem__(4, -1), "Client late: Expected labels from 0 to 2, .* got -1"),
        (
            lambda d: setattr(d, "x", [[*d.x[0][:4], torch.zeros(5)]]),
            r"Client late: .*\(4,\), \(5,\)",
        ),
    ],
)
def test_what_is_wrong_is_said_when_it_is_read(spoil, sentence):
    data = pairs(PARTS[0])
    spoil(data)
    problem = make_problem(model(), {"early": pairs(PARTS[1]), "late": data}, test=data)
    learner = Learner(problem)
    learner.updates([0])
    with pytest.raises(ValueError, match=sentence):
        learner.updates([1])
    with pytest.raises(ValueError, match=sentence.replace("Client late", "Test data")):
        learner.evaluate()


def drawn(part, draw):
    """With noise of a generator on each example."""
    return pairs(part, lambda x: x + 0.1 * draw())


def normal():
    return torch.randn(4)


@pytest.mark.parametrize("local", [Work(), Work(2, 2, 0.1), Work(example_norm=0.1)])
def test_augmentation_follows_from_the_key(local):
    problem = make_problem(
        model(), [drawn(part, normal) for part in PARTS], test=drawn(PARTS[0], normal)
    )
    learner, key = Learner(problem, local), Key.from_seed(1)
    first = learner.updates([0, 1, 2], key)[0]
    torch.manual_seed(4)
    assert np.array_equal(first[2], learner.updates([2], key)[0][0])
    assert not np.allclose(first, learner.updates([0, 1, 2], key.fold_in(1))[0], atol=1e-8)
    assert learner.evaluate() == learner.evaluate()


@pytest.mark.parametrize("local", [Work(None, 3, 0.1), Work(2, 3, 0.1)])
def test_each_step_and_each_client_draws_anew_for_an_example(local):
    views = []

    def view(x):
        views.append((*x.tolist(), float(torch.rand(1))))
        return x

    learner = Learner(make_problem(model(), [pairs(PARTS[0], view), pairs(PARTS[0], view)]), local)
    views.clear()
    learner.updates([0, 1], Key.from_seed(1))
    assert len(set(views)) == len(views) == 2 * 3 * 5


def states():
    numpys = np.random.get_state()  # noqa: NPY002
    return numpys[1].tolist(), numpys[2], random.getstate(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("draw", [np.random.normal, random.random])
def test_other_global_generators_follow_from_the_key_too(draw):
    ours = model()  # which seeds torch
    before = states()
    problem = make_problem(ours, [drawn(part, draw) for part in PARTS])
    learner, key = Learner(problem), Key.from_seed(1)
    first = learner.updates([0, 1], key)[0]
    assert np.array_equal(first, learner.updates([0, 1], key)[0])
    assert not np.allclose(first, learner.updates([0, 1], key.fold_in(1))[0], atol=1e-8)
    assert states() == before


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), np.random.random, random.random])
def test_what_reading_one_example_draws_changes_no_other(draw):
    def read(times):
        def form(x):
            for _ in range(times * np.array_equal(x, X[0])):
                draw()
            return x + float(draw())

        return as_examples(pairs(slice(0, 4), form)).take(np.arange(4), seed=3)[0]

    plain, more = read(0), read(5)
    assert torch.equal(plain[1:], more[1:])
    assert not torch.equal(plain[0], more[0])


def test_data_that_nobody_can_read_again_are_refused():
    own = np.random.default_rng(0)
    with pytest.raises(ValueError, match="Client 0: Expected an example that is the same each"):
        make_problem(model(), [drawn(part, own.normal) for part in PARTS])


def test_a_data_set_is_read_by_one_thread_at_a_time():
    inside, together = [], []

    def slowly(x):
        inside.append(x)
        time.sleep(0.001)
        together.append(len(inside))
        inside.pop()
        return x

    learner = Learner(make_problem(model(), [pairs(part, slowly) for part in PARTS]))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(learner.updates, [[0], [1], [2]]))
    assert set(together) == {1}
