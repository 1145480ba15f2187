"""Clients whose data are used as they are, or read when their turn comes, and not kept."""

import copy
import gc
import itertools
import weakref

import numpy as np
import pandas as pd
import pytest
import torch
from data_forms import Pairs
from torch import nn
from torch.utils.data import Subset, TensorDataset

import randquant as rq
from randquant.aggregation import LocalGaussian
from randquant.channels import Key
from randquant.local_training import Learner, StoredExamples, Work, as_examples, make_problem
from randquant.local_training.problem import MAX_TABLE_BYTES

RNG = np.random.default_rng(0)
SIZES = (5, 9, 3, 7)
DATA = [(RNG.normal(size=(n, 4)).astype(np.float32), RNG.integers(0, 3, n)) for n in SIZES]
WORKS = [Work(), Work(3, 2, 0.1), Work(learning_rate="auto"), Work(example_norm=0.1)]
FRONT = {"mechanism": LocalGaussian(1.0, 4.0), "rounds": 3, "cohort": 2, "progress": False}
KEY = Key.from_seed(1)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))


def given(number):
    return DATA[int(number)]


def updates(problem, work, clients=(2, 0, 1, 3)):
    learner = Learner(problem, work)
    return learner.updates(clients, KEY), learner.together


def mapped(folder, name, array):
    np.save(folder / f"{name}.npy", array)
    return np.load(folder / f"{name}.npy", mmap_mode="r")


@pytest.mark.parametrize("work", WORKS)
def test_a_function_gives_the_same_bits_as_its_data(work):
    problem = make_problem(model(), given, population=4)
    (found, losses), together = updates(problem, work)
    (wanted, first), alike = updates(make_problem(model(), DATA), work)
    assert np.array_equal(found, wanted)
    assert np.array_equal(losses, first)
    assert together == alike


def test_a_run_with_a_function_is_that_with_its_data():
    """Names and numbers alike, and numbers that are sent with updates."""
    privacy = rq.Privacy(numbers=["accuracy", "num-examples:0:9"], weighted_by="num-examples")
    names = [f"{number}" for number in range(4)]
    options = {**FRONT, "seed": 0, "privacy": privacy}
    run = rq.train(model(), given, population=names, **options)
    other = rq.train(model(), dict(zip(names, DATA, strict=True)), **options)
    assert [m.mean for m in run.history] == [m.mean for m in other.history]
    assert run.history[-1].numbers == other.history[-1].numbers


def test_a_client_is_read_when_its_turn_comes_and_not_kept():
    alive, called = [], []

    class Array(np.ndarray):
        pass

    def read(number):
        called.append(number)
        x = DATA[number % 4][0].copy().view(Array)
        alive.append(weakref.ref(x))
        return x, DATA[number % 4][1]

    at_rounds = []

    def on_round(metrics):
        gc.collect()
        at_rounds.append((set(called), sum(each() is not None for each in alive)))

    server = rq.Server(on_round=on_round)
    run = rq.train(model(), read, population=10**6, server=server, **FRONT)
    assert run.summary.rounds == 3
    assert [kept for _, kept in at_rounds] == [0, 0, 0]
    before = {0}
    for seen, _ in at_rounds:
        assert len(seen - before) <= 2  # the cohort
        before = seen


def test_a_function_may_use_one_array_for_all():
    """Several clients are computed at once: each must have its own data."""
    x, y = np.empty((9, 4), np.float32), np.empty(9, np.int64)

    def read(number):
        size = SIZES[number]
        x[:size], y[:size] = DATA[number]
        return x[:size], y[:size]

    problem = make_problem(model(), read, population=4)
    for work in WORKS:
        wanted = updates(make_problem(model(), DATA), work)[0][0]
        assert np.array_equal(updates(problem, work)[0][0], wanted)


@pytest.mark.parametrize("draw", [np.random.random, lambda: float(torch.rand(()))])
def test_what_a_function_draws_is_the_same_each_time(draw):
    problem = make_problem(model(), lambda k: (DATA[k][0] + draw(), DATA[k][1]), population=4)
    state = torch.get_rng_state()
    first, again = (updates(problem, Work(), order)[0][0] for order in ((2, 0), (0, 2)))
    assert np.array_equal(first, again[::-1])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_function_of_data_sets_reads_example_by_example():
    problem = make_problem(model(), lambda k: Pairs(*DATA[k]), population=4)
    (found, _), together = updates(problem, Work())
    assert np.allclose(found, updates(make_problem(model(), DATA), Work())[0][0], atol=1e-6)
    assert not together


def test_files_are_read_by_a_function_of_their_paths(tmp_path):
    paths = []
    for number, (x, y) in enumerate(DATA):
        paths.append(tmp_path / f"{number}.parquet")
        pd.DataFrame({**{f"x{k}": x[:, k] for k in range(4)}, "y": y}).to_parquet(paths[-1])
    local = rq.Local(columns=([f"x{k}" for k in range(4)], "y"))
    run = rq.train(model(), pd.read_parquet, population=paths, local=local, **FRONT)
    assert run.summary.rounds == 3


def test_a_run_with_a_function_goes_on_to_the_same_bits(tmp_path):
    def stop(metrics):
        if metrics.round == 2:
            raise KeyboardInterrupt

    options = {**FRONT, "population": 4, "seed": 3}
    whole = rq.train(model(), given, **options)
    with pytest.raises(KeyboardInterrupt):
        rq.train(model(), given, folder=tmp_path / "a", server=rq.Server(on_round=stop), **options)
    again = rq.train(model(), given, folder=tmp_path / "a", **options)
    assert [m.mean for m in again.history] == [m.mean for m in whole.history]
    with pytest.raises(ValueError, match="Expected the clients' data that the run in"):
        rq.train(
            model(), given, folder=tmp_path / "a", **{**options, "population": [0, 1, 2, "3 "]}
        )


def odd(number):
    """The data of clients that a function must not give, after those of the first."""
    x, y = DATA[0]
    return {
        0: (x, y),
        1: (np.full_like(x, np.nan), y),
        2: (x, y + 9),
        3: (x[:, :3], y),
        4: Pairs(x, y),
        5: (x[:0], y[:0]),
        6: None,
        7: (x[:4], y),
    }[number]


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (1, "Client 1: Expected finite features, got NaN or infinity in example 0"),
        (2, "Client 2: Expected labels from 0 to 2, one for each output of the model, got"),
        (3, r"Client 3: Expected examples like those of client 0, features \(4,\) .* \(3,\)"),
        (4, "Client 4: Expected examples like those of client 0, .* of a data set: give all"),
        (5, "Client 5: Expected at least one example, got 0"),
        (6, r"Client 6: Expected a tuple .* got a NoneType"),
        (7, "Client 7: Expected as many targets as features"),
    ],
)
def test_what_is_wrong_with_a_client_is_said_when_it_is_read(number, sentence):
    learner = Learner(make_problem(model(), odd, population=8))
    for _ in range(2):  # what was opened before is not taken for it
        learner.updates([0])
        with pytest.raises((TypeError, ValueError), match=sentence):
            learner.updates([0, number])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"privacy": rq.Privacy(unit="example")}, "whose numbers of examples are known before"),
        (
            {"local": rq.Local(standardize=rq.Standardize(-3, 3, share=0))},
            "features in memory as one table .* got examples that are read when they are needed",
        ),
        ({"clients": DATA}, "Expected population, .* got one without the other"),
        ({"population": None}, "Expected population, .* got one without the other"),
        ({"population": 0}, "Expected population >= 1"),
        ({"population": "abcd"}, "Expected population"),
        ({"population": []}, "Expected at least one client, got 0"),
        ({"population": [1, "1"]}, "Expected clients of different names, got '1' more than once"),
    ],
)
def test_what_cannot_be_done_with_a_function_is_refused(options, sentence):
    usual = {"clients": given, "population": 4, **FRONT}
    with pytest.raises((TypeError, ValueError), match=sentence):
        rq.train(model(), **{**usual, **options})


# The user's own memory.

FORMS = {
    "arrays": lambda x, y: (x, y),
    "tensors": lambda x, y: (torch.from_numpy(x), torch.from_numpy(y)),
    "strided": lambda x, y: (np.asfortranarray(x), np.repeat(y, 2)[::2]),
    "float64": lambda x, y: (x.astype(np.float64), y.astype(np.int32)),
    "bfloat16": lambda x, y: (torch.from_numpy(x).bfloat16(), torch.from_numpy(y).to(torch.int8)),
    "data set": lambda x, y: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
}


@pytest.fixture(params=["table", "rows"])
def table(request, monkeypatch):
    if request.param == "rows":
        monkeypatch.setattr("randquant.local_training.problem.MAX_TABLE_BYTES", 0)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("form", FORMS)
def test_the_users_tensors_are_used_as_they_are(form):
    """None of their numbers is copied but for a batch, nor changed."""
    data = [FORMS[form](x.copy(), y.copy()) for x, y in DATA]
    problem = make_problem(model(), data)
    before = copy.deepcopy(data)
    for own, source in zip(data, problem.clients.sources, strict=True):
        features, targets = own.tensors if form == "data set" else own
        assert torch.as_tensor(features).data_ptr() == source.features.data_ptr()
        assert torch.as_tensor(targets).data_ptr() == source.targets.data_ptr()
    learner = Learner(problem)
    learner.updates([0, 1, 2, 3])
    learner.evaluate(1)
    for one, other in zip(before, data, strict=True):
        for x, y in zip(*(getattr(each, "tensors", each) for each in (one, other)), strict=True):
            assert torch.equal(torch.as_tensor(x), torch.as_tensor(y))


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_one_client_changes_no_bit_of_any(form, work):
    rounded = [(torch.from_numpy(x).bfloat16().float().numpy(), y) for x, y in DATA]
    wanted = updates(make_problem(model(), rounded), work)[0][0]
    data = [FORMS[form](*rounded[0]), *rounded[1:]]
    for order in ([0, 1, 2, 3], [1, 0, 2, 3]):  # as the first client, whose shape is everyone's
        problem = make_problem(model(), [data[k] for k in order])
        found = updates(problem, work, [order.index(k) for k in (2, 0, 1, 3)])[0][0]
        if work.batch is None:  # a client's number draws its batches
            assert np.array_equal(found, wanted)
        else:
            assert np.allclose(found, wanted, atol=0.5)


@pytest.mark.usefixtures("table")
def test_strides_of_images_change_no_bit():
    """Of one channel, a tensor in channels last is contiguous as well: its strides stay its own."""
    x, y = torch.rand(20, 1, 8, 8), torch.arange(20) % 3
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    found = []
    for one in (x, x.to(memory_format=torch.channels_last), x.permute(0, 1, 3, 2).contiguous()):
        turned = one if one.equal(x) else one.permute(0, 1, 3, 2)
        found += [updates(make_problem(network, [(turned, y), (x, y)]), w, [0, 1])[0][0]
                  for w in WORKS]  # fmt: skip
        features, _ = as_examples((turned, y)).take(np.arange(3))
        assert features.stride() == (64, 64, 8, 1)
    for k in range(len(WORKS)):
        for other in (found[4 + k], found[8 + k]):
            assert np.array_equal(found[k], other)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.float16, ">f4", ">i2"])
def test_types_that_torch_does_not_gather_are_converted(kind):
    x = np.arange(12).reshape(3, 4).astype(kind)
    features, _ = as_examples((x, [0, 1, 2])).take(np.array([2, 0]))
    assert features.tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert features.dtype == (torch.float32 if np.dtype(kind).kind == "f" else torch.int64)


@pytest.mark.usefixtures("table")
def test_rows_of_a_shared_data_set_are_not_copied():
    x, y = (torch.from_numpy(np.concatenate(each)) for each in zip(*DATA, strict=True))
    whole, ends = TensorDataset(x, y), np.cumsum([0, *SIZES])
    parts = [Subset(whole, list(range(*pair))) for pair in itertools.pairwise(ends)]
    parts[1] = Subset(Subset(whole, range(4, 20)), range(1, 10))
    problem = make_problem(model(), parts)
    assert {each.features.data_ptr() for each in problem.clients.sources} == {x.data_ptr()}
    assert problem.clients.sizes.tolist() == list(SIZES)
    for work in WORKS:
        wanted = updates(make_problem(model(), DATA), work)[0][0]
        assert np.array_equal(updates(problem, work)[0][0], wanted)
    x[2] = torch.nan  # of the first client alone
    with pytest.raises(ValueError, match=r"Client 0: Expected finite features, .* in example 2"):
        make_problem(model(), parts)
    assert make_problem(model(), parts[1:]).dry_run.classes == 3


@pytest.mark.parametrize("work", WORKS)
def test_rows_of_a_table_are_those_of_each_client(work, monkeypatch):
    whole = TensorDataset(
        *(torch.from_numpy(np.concatenate(each)) for each in zip(*DATA, strict=True))
    )
    data = [Subset(whole, range(5, 14)), FORMS["strided"](*DATA[2]), DATA[0]]
    results = []
    for limit in (0, MAX_TABLE_BYTES):
        monkeypatch.setattr("randquant.local_training.problem.MAX_TABLE_BYTES", limit)
        learner = Learner(make_problem(model(), data, test=data[0]), work)
        assert (learner._data._table is None) == (limit == 0)
        results.append((*learner.updates([2, 0, 1], KEY), learner.evaluate(0), learner.evaluate()))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


def test_a_table_is_made_of_little_data_in_memory_only(tmp_path, monkeypatch):
    """Else it would be a copy of much, or a reading of files that no batch has asked for."""
    files = [(mapped(tmp_path, f"x{k}", x), mapped(tmp_path, f"y{k}", y))
             for k, (x, y) in enumerate(DATA)]  # fmt: skip
    size = sum(SIZES) * (4 * 4 + 8)
    for clients, limit, joined in (
        (DATA, size, True),
        (DATA, size - 1, False),
        (files, size, False),
    ):
        monkeypatch.setattr("randquant.local_training.problem.MAX_TABLE_BYTES", limit)
        assert (Learner(make_problem(model(), clients))._data._table is not None) == joined


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found_in_any_tensor(value, kind):
    for turn in (lambda x: x, lambda x: x[::2], lambda x: x.T.contiguous().T):
        for row in (0, 17, 18):
            x = turn(torch.zeros(38, 33, dtype=kind))
            x[row, row] = value
            with pytest.raises(ValueError, match=f"in example {row}: repair"):
                make_problem(model(), [(x, torch.zeros(len(x)))])


def test_large_numbers_are_refused_in_the_type_that_models_take():
    """In float64 they are finite, in float32 not."""
    x = DATA[0][0].astype(np.float64)
    x[3, 1] = 1e200
    with pytest.raises(ValueError, match=r"Client 0: Expected finite features, .* in example 3"):
        make_problem(model(), [(x, DATA[0][1])])


# Files that are mapped into memory.


@pytest.mark.parametrize("work", WORKS)
def test_a_mapped_file_gives_the_same_bits_as_its_numbers(work, tmp_path):
    x, y = (np.concatenate(each) for each in zip(*DATA, strict=True))
    x, y = mapped(tmp_path, "x", x), mapped(tmp_path, "y", y)
    ends = np.cumsum([0, *SIZES])
    clients = [(x[a:b], y[a:b]) for a, b in itertools.pairwise(ends)]
    problem = make_problem(model(), clients, test=clients[0])
    (found, _), together = updates(problem, work)
    (wanted, _), alike = updates(make_problem(model(), DATA), work)
    assert np.array_equal(found, wanted)
    assert together == alike
    learner = Learner(problem)
    assert learner.evaluate() == Learner(make_problem(model(), DATA, test=DATA[0])).evaluate()
    whole = problem.clients.sources[0].features
    assert whole.data_ptr() == x.ctypes.data
    # By a function as well.
    problem = make_problem(model(), clients.__getitem__, population=4)
    assert np.array_equal(updates(problem, work)[0][0], wanted)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[1:], np.asarray, lambda x: x[:, :2].T.T])
def test_a_mapped_file_is_known_in_any_view(view, tmp_path):
    x = view(mapped(tmp_path, "x", DATA[0][0]))
    examples = as_examples((x, DATA[0][1][: len(x)]))
    assert isinstance(examples, StoredExamples)
    assert examples.mapped
    assert not as_examples((np.array(x), DATA[0][1][: len(x)])).mapped
    assert as_examples((((x, x)), DATA[0][1][: len(x)])).mapped


@pytest.mark.parametrize("together", [None, False])
def test_what_is_wrong_in_a_mapped_file_is_said_when_it_is_read(together, tmp_path):
    x = DATA[0][0].copy()
    x[4] = np.nan
    x, y = mapped(tmp_path, "x", x), mapped(tmp_path, "y", np.array([0, 1, 2, 0, 9]))
    right = np.nan_to_num(x)
    clients = {"a": (right, DATA[0][1]), "b": (x, DATA[0][1]), "c": (right, y)}
    problem = make_problem(model(), clients, test=clients["b"])  # neither is read yet
    learner = Learner(problem, Work(together=together))
    learner.updates([0])
    with pytest.raises(ValueError, match="Client b: Expected finite features"):
        learner.updates([0, 1])
    with pytest.raises(ValueError, match=r"Client c: Expected labels from 0 to 2, .* got 9"):
        learner.updates([0, 2])
    with pytest.raises(ValueError, match="Test data: Expected finite features"):
        learner.evaluate()


def test_public_examples_are_compared_with_mapped_ones(tmp_path):
    x = mapped(tmp_path, "x", DATA[0][0])
    norm = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="got example 1 of client 0's"):
        make_problem(norm, [(x, DATA[0][1])], buffers="server", public=x[2:4] * 1 + [[9], [0]])
