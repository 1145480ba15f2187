"""Data as tables give them, and what is refused with the way out."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from torch import nn

import randquant as rq
from randquant.aggregation import ClippedSGD
from randquant.channels import Key
from randquant.local_training import Learner, make_problem
from randquant.training import RoundCollector

DRAW = np.random.default_rng(0)
ROWS = [
    {"site": [k] * 5, "age": DRAW.integers(20, 90, 5) / 4, "dose": np.arange(5) - k,
     "sick": DRAW.integers(0, 2, 5)}
    for k in range(3)
]  # fmt: skip
ARRAYS = [(np.stack([row["age"], row["dose"]], 1).astype(np.float32), row["sick"]) for row in ROWS]
NAMED = (("age", "dose"), "sick")


def updates(clients, columns=None):
    torch.manual_seed(0)
    problem = make_problem(nn.Linear(2, 2), clients, columns=columns)
    return problem.clients.names, Learner(problem).updates([0, 1, 2])[0]


WHOLE = pd.concat(map(pd.DataFrame, ROWS), ignore_index=True)
GROUPS = {
    "pandas": WHOLE.groupby("site"),
    "pandas, by a list": WHOLE.groupby(["site"]),
    "polars": pl.from_pandas(WHOLE).group_by("site", maintain_order=True),
}


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
def test_features_of_a_table_are_its_columns_side_by_side(kind):
    tables = [kind(row) for row in ROWS]
    _, expected = updates(ARRAYS)
    assert np.array_equal(updates(tables, NAMED)[1], expected)
    assert np.array_equal(updates(dict(zip("abc", tables, strict=True)), NAMED)[1], expected)


@pytest.mark.parametrize("name", GROUPS)
def test_the_groups_of_a_table_are_clients(name):
    names, changes = updates(GROUPS[name], NAMED)
    assert names == ("0", "1", "2")
    assert np.array_equal(changes, updates(ARRAYS)[1])


@pytest.mark.parametrize(
    "types",
    [{"age": "Float64", "dose": "Int16", "sick": "Int8"},
     {"age": "double[pyarrow]", "dose": "int32[pyarrow]", "sick": "int64[pyarrow]"}],
)  # fmt: skip
def test_columns_that_could_have_missing_values_and_have_none_are_numbers(types):
    tables = [pd.DataFrame(row).astype(types) for row in ROWS]
    assert np.array_equal(updates(tables, NAMED)[1], updates(ARRAYS)[1])


def test_a_fraction_in_a_column_changes_no_other_clients_features():
    """pandas makes float64 of a whole table's column then: 2**54 + 2**30 + 1 has two float32."""
    read = []
    for own, kind in ((0, np.int64), (0.5, np.float64)):
        doses = np.array([2**54 + 2**30 + 1, 2**54 + 2**30 + 1, own]).astype(kind)
        tables = [
            pd.DataFrame({"age": [40.0], "dose": doses[k : k + 1], "sick": [1]}) for k in range(3)
        ]
        clients = make_problem(nn.Linear(2, 2), tables, columns=NAMED).clients
        both = [clients.take(client, np.zeros(1, dtype=np.int64))[0] for client in range(2)]
        assert {each.dtype for each in both} == {torch.float32}
        read.append(torch.cat(both))
    assert torch.equal(*read)


def test_a_table_of_whole_numbers_has_features_like_any_other():
    rows = [{"age": [40], "dose": [3], "sick": [1]}, {"age": [41.5], "dose": [3], "sick": [0]}]
    clients = make_problem(nn.Linear(2, 2), [pd.DataFrame(r) for r in rows], columns=NAMED).clients
    both = [clients.take(client, np.zeros(1, dtype=np.int64))[0] for client in range(2)]
    assert [each.tolist() for each in both] == [[[40, 3]], [[41.5, 3]]]
    assert {each.dtype for each in both} == {torch.float32}


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (pd.DataFrame(ROWS[0]), r'several clients, got a DataFrame with .*: .*groupby\("client"\)'),
        (
            [pd.DataFrame({**ROWS[0], "age": list("abcde")})],
            "Client 0: Expected numbers in column age",
        ),
        (
            [pd.DataFrame({**ROWS[0], "sick": [True] * 5})],
            "Expected numbers in column sick, got bool",
        ),
        (
            [pd.DataFrame({**ROWS[0], "dose": pd.array([1, None, 2, 3, 4], "Int64")})],
            "in column dose, got object.*missing",
        ),
        (
            [pd.DataFrame({**ROWS[0], "dose": [1, np.nan, 2, 3, 4]})],
            "Client 0: Expected finite features",
        ),
    ],
)
def test_a_table_that_cannot_be_trained_on_is_refused_by_column(clients, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make_problem(nn.Linear(2, 2), clients, columns=NAMED)


def test_targets_of_tables_are_classes_or_numbers_as_the_loss_says():
    """One client's fraction makes a column of pandas floats: it must not change the task."""
    for own in (1, 1.5):
        frame = pd.concat([WHOLE.assign(sick=0), WHOLE.assign(site=3, sick=own)])
        problem = make_problem(
            nn.Linear(2, 2), frame.groupby("site"), columns=NAMED,
            loss=lambda output, target: (output - target[:, None]).square().mean(),
        )  # fmt: skip
        assert problem.clients.example.targets.dtype == torch.float32
        assert problem.dry_run.classes is None
    with pytest.raises(ValueError, match=r"Client 3: Expected numbers of classes in column sick"):
        make_problem(nn.Linear(2, 2), frame.groupby("site"), columns=NAMED)
    with pytest.raises(ValueError, match=r"It takes targets.long\(\): .* convert them in the loss"):
        make_problem(
            nn.Linear(2, 2), WHOLE.groupby("site"), columns=NAMED,
            loss=lambda output, target: nn.functional.cross_entropy(output, target),
        )  # fmt: skip
    whole = make_problem(nn.Linear(2, 2), WHOLE.astype({"sick": float}).groupby("site"),
                       columns=NAMED)  # fmt: skip
    assert whole.clients.example.targets.dtype == torch.int64


X, Y = ARRAYS[0]


def nested():
    """Made where it is asked for: torch imports its compiler for it, which takes seconds."""
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((np.ma.masked_less(X, 1), Y), "Client 1: Expected features without masked values"),
        ((X, np.ma.masked_equal(Y, 1)), "Expected targets without masked values"),
        ((nested, Y), "Expected features in rows of one shape, got a nested tensor: pad it"),
        ((sparse.csr_matrix(X), Y), r"Expected dense features, got a csr_matrix: call .toarray"),
        ((X, np.array(list("abcab"))), "Expected targets as numbers.*number labels from 0"),
    ],
)
def test_other_forms_are_refused_with_the_way_out(pair, message):
    pair = tuple(part() if callable(part) else part for part in pair)
    with pytest.raises((TypeError, ValueError), match=message):
        make_problem(nn.Linear(2, 2), [ARRAYS[1], pair])


def test_masks_that_hide_nothing_are_arrays():
    assert np.array_equal(updates([(np.ma.array(X), Y), *ARRAYS[1:]])[1], updates(ARRAYS)[1])


def test_integers_where_a_model_takes_floats_are_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"got RuntimeError.* It takes features as float32"):
        make_problem(nn.Linear(2, 2), [(X.astype(np.int64), Y)])


def test_labels_that_would_be_ignored_are_refused():
    with pytest.raises(ValueError, match=r"Client 0: .* got -100: which cross_entropy ignores"):
        make_problem(nn.Linear(2, 2), [(X, np.where(Y == 1, -100, Y))])


def test_probabilities_under_cross_entropy_are_told():
    with pytest.warns(UserWarning, match="outputs are probabilities.*leave out") as warned:
        make_problem(nn.Sequential(nn.Linear(2, 2), nn.Softmax(1)), ARRAYS)
    assert warned[0].filename == __file__


@pytest.mark.parametrize("local", [rq.Local(), rq.Local(learning_rate=1e30)])
def test_a_client_whose_update_overflows_is_named(local):
    far = X.copy()
    far[2, 0] = 1e20
    problem = make_problem(nn.Linear(2, 2), {"a": ARRAYS[1], "b": (far, Y)})
    learner = Learner(problem, local.complete("client").work())
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(ValueError, match=r"Client b: Expected a finite update.*scale"),
    ):
        RoundCollector(learner, ClippedSGD(1.0), pool, 1)([0, 1], Key.from_seed(0), 0)


@pytest.mark.parametrize(
    ("name", "way"),
    [("eps", "give epsilon="), ("cohort_size", "give cohort="), ("bits", r"Privacy\(bits=…\)"),
     ("learning_rate", r"Local\(learning_rate=…\) for clients.* or server="),
     ("proximal_mu", "give local=randquant.Local.*no penalty"),
     ("epochs", r"local=randquant.Local\(epochs=…\)"), ("epsilom", "epsilon")],
)  # fmt: skip
def test_an_argument_of_another_place_is_refused_with_it(name, way):
    with pytest.raises(TypeError, match=f"Expected arguments of train, got {name}=.*{way}"):
        rq.train(nn.Linear(2, 2), ARRAYS, **{name: 1})


def test_a_device_of_torch_is_a_device():
    assert rq.Local(device=torch.device("cuda", 1)) == rq.Local(device="cuda:1")
