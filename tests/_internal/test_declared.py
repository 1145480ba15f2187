"""Values as they are declared: read from a command line, checked, in one voice."""

import inspect
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from msgspec import Meta

import randquant as rq
from randquant._internal import Count, Server, declared


@dataclass(frozen=True)
class Record:
    """A record.

    Attributes:
        rounds: how many rounds,
            at most.
        bins: a count or values.
        device: where: cpu.
    """

    rounds: Server[Count] = 1
    step: Annotated[float, Meta(gt=0, le=2)] | None = None
    limit: Annotated[float, Meta(gt=0)] = 1.0
    norm: Literal["l1", "l2"] = "l2"
    bins: int | list[float] = 3
    parts: tuple[str, ...] | None = None
    device: Annotated[str, Meta(pattern="^cpu$")] = "cpu"
    options: dict[str, float | bool] | None = None


HINTS = declared.hints(Record)


@pytest.mark.parametrize("made", [rq.Local, rq.Privacy, rq.Server], ids=lambda each: each.__name__)
def test_signatures_of_what_users_make_show_plain_types(made):
    shown = str(inspect.signature(made))
    assert "Annotated" not in shown
    assert "declared" not in shown
    assert not any(f"{group}[" in shown for group in ("Clients", "Data", "Files", "Mechanism"))


@pytest.mark.parametrize(
    ("made", "value", "message"),
    [
        (rq.Privacy, {"bits": 25}, "bits <= 24, got bits=25"),
        (rq.Privacy, {"coordinates": 0}, "coordinates >= 1, got coordinates=0"),
        (rq.Local, {"learning_rate": -1.0}, "learning_rate >= 0.0, got learning_rate=-1.0"),
        (rq.Local, {"epochs": 20_000}, "epochs <= 10000, got epochs=20000"),
        (rq.Local, {"device": "tpu"}, "got 'tpu'"),
        (rq.Server, {"checkpoint_every": 0}, "checkpoint_every >= 1, got checkpoint_every=0"),
    ],
)
def test_bounds_of_what_users_make_hold_beside_words_and_none(made, value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        made(**value)
    name = next(iter(value))
    assert getattr(made(**{name: getattr(made(), name)}), name) == getattr(made(), name)


def test_numbers_are_read_from_a_file_as_from_the_line(tmp_path):
    (tmp_path / "numbers.txt").write_text("0.5 1,\n-2e-3\n")
    from_file = declared.read("--bins", list[float], f"@{tmp_path / 'numbers.txt'}")
    assert from_file == declared.read("--bins", list[float], "0.5,1,-2e-3") == [0.5, 1.0, -0.002]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(OSError, match=r"nowhere\.txt"):
        declared.read("--bins", list[float], f"@{tmp_path / 'nowhere.txt'}")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises((TypeError, OSError), match="--bins"):
        declared.read("--bins", list[float], f"@{tmp_path / 'bytes'}")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rounds", "5", 5),
        ("step", "1e-5", 1e-5),
        ("limit", "inf", float("inf")),
        ("norm", "l1", "l1"),
        ("bins", "4", 4),
        ("bins", "-2,0.5", [-2.0, 0.5]),
        ("parts", "head.*, body", ("head.*", "body")),
        ("options", "momentum=0.9,nesterov=true", {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_a_text_is_read_as_its_declaration_says(name, text, value):
    found = declared.read(name, HINTS[name], text)
    assert (found, type(found)) == (value, type(value))
    declared.check(name, HINTS[name], found)


@pytest.mark.parametrize(
    ("name", "value", "kind", "sentence"),
    [
        ("rounds", 0, ValueError, "Expected rounds >= 1, got rounds=0."),
        ("rounds", 1.5, TypeError, "Expected rounds to be a whole number, got 1.5."),
        ("rounds", True, TypeError, "Expected rounds to be a whole number, got True."),
        ("rounds", None, TypeError, "Expected rounds to be a whole number, got None."),
        ("step", 3, ValueError, "Expected step <= 2.0, got step=3."),
        ("step", float("inf"), ValueError, "Expected step <= 2.0, got step=inf."),
        ("limit", float("nan"), ValueError, "Expected limit > 0.0, got limit=nan."),
        ("norm", "l3", ValueError, "Expected norm to be one of l1, l2; got 'l3'."),
        (
            "bins",
            "x",
            TypeError,
            "Expected bins to be a whole number or a list of values, got 'x'.",
        ),
        ("bins", ["x"], TypeError, "Expected bins to be a number, got 'x'."),
        ("parts", "head", TypeError, "Expected parts to be a list of values, got 'head'."),
        ("device", "gpu", ValueError, "Expected device (where: cpu), got 'gpu'."),
        ("options", 3, TypeError, "Expected options to be a table, KEY=VALUE,..., got 3."),
    ],
)
def test_what_is_not_as_declared_is_one_sentence(name, value, kind, sentence):
    with pytest.raises(kind) as caught:
        declared.check(name, HINTS[name], value)
    assert str(caught.value) == sentence
