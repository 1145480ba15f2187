"""Settings declared once: type, bounds, choices and meaning of a value in one annotation.

A declaration is an annotation `Annotated[type, about("what it means", group="privacy")]`. Its type
may carry bounds: `Annotated[int, Meta(ge=1)]`. The fields of a record, a command's options and a
JSON Schema are all read from it. All messages are the house's: `Expected rounds >= 1, got 0.`
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as kinds

from randquant._internal import validate


def about(text: str, group: str = "", form: str = "") -> msgspec.Meta:
    """Return the annotation of a declared value.

    Args:
        text: what it means.
        group: the heading that help shows it under.
        form: how it is written, as in FILE; by default that follows from its type.
    """
    return msgspec.Meta(description=text, extra={"group": group, "form": form})


def hints(declared: Any) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields or of a function's parameters, by name."""
    return typing.get_type_hints(declared, include_extras=True)


def meta(record: type, name: str) -> msgspec.Meta:
    """Return what a dataclass says about a field, to declare an option of the same meaning."""
    found = meaning(hints(record)[name])
    return about(found.text, found.group, found.form)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a declared value means, its group, and how it is written on a command line."""

    text: str
    group: str
    form: str


def meaning(hint: Any) -> Meaning:
    """Return what a declaration says about its value.

    Example:
        >>> meaning(typing.Annotated[int | None, about("how many rounds", "server")])
        Meaning(text='how many rounds', group='server', form='INT')
    """
    text, group, form = "", "", ""
    for part in getattr(hint, "__metadata__", ()):
        if isinstance(part, msgspec.Meta) and part.description:
            text, extra = part.description, part.extra or {}
            group, form = extra.get("group", ""), extra.get("form", "")
    return Meaning(text, group, form or _form(_alternatives(hint)[-1]))


def choices(hint: Any) -> tuple[str, ...]:
    """Return the words that a declared value may be; none if it may be others.

    Example:
        >>> choices(typing.Literal["l1", "l2"] | None)
        ('l1', 'l2')
    """
    words: tuple[str, ...] = ()
    for kind in _alternatives(hint):
        if not isinstance(kind, kinds.LiteralType):
            return ()
        words += tuple(str(value) for value in kind.values)
    return words


def check(name: str, hint: Any, value: Any) -> Any:
    """Return a value that is as declared; whole numbers become floats where those are declared.

    Raises:
        TypeError: it is of another kind.
        ValueError: it is out of bounds or none of the choices.

    Example:
        >>> check("rounds", typing.Annotated[int, msgspec.Meta(ge=1)], 0)
        Traceback (most recent call last):
        ...
        ValueError: Expected rounds >= 1, got rounds=0.
    """
    alternatives = _alternatives(hint)
    if value is None and len(alternatives) < len(_all(hint)):
        return None
    fitting = [kind for kind in alternatives if _fits(kind, value)]
    return _check(name, (fitting or alternatives)[0], value)


def read(name: str, hint: Any, *texts: str) -> Any:
    """Return the value that texts on a command line stand for; its bounds are not checked.

    Lists are written A,B,C; numbers may also stand in a file, @FILE; mappings are KEY=VALUE,...

    Args:
        name: what a message calls it.
        hint: its declaration.
        texts: one text, or one for each item of a tuple.

    Raises:
        TypeError: the text stands for no value of that kind.
        OSError: a file cannot be read.

    Example:
        >>> read("--bins", list[float], "-2,0,2")
        [-2.0, 0.0, 2.0]
        >>> read("--levels", int | None, "16")
        16
    """
    problem = ""
    for kind in _alternatives(hint):
        try:
            if isinstance(kind, kinds.TupleType):
                return tuple(map(_read, kind.item_types, texts))
            return _read(kind, *texts)
        except OSError as error:
            raise OSError(f"Expected numbers for {name} in a file: {error}") from None
        except ValueError:
            problem = f"Expected {name} to be {_called(kind)}, got {' '.join(texts)!r}."
    raise TypeError(problem)


def items(hint: Any) -> int:
    """Return how many texts make a declared value: the length of a tuple, otherwise one."""
    kind = _alternatives(hint)[0]
    return len(kind.item_types) if isinstance(kind, kinds.TupleType) else 1


def _all(hint: Any) -> tuple[kinds.Type, ...]:
    kind = kinds.type_info(hint)
    while isinstance(kind, kinds.Metadata):
        kind = kind.type
    if not isinstance(kind, kinds.UnionType):
        return (kind,)
    return tuple(k.type if isinstance(k, kinds.Metadata) else k for k in kind.types)


def _alternatives(hint: Any) -> list[kinds.Type]:
    return [kind for kind in _all(hint) if not isinstance(kind, kinds.NoneType)]


def _fits(kind: kinds.Type, value: Any) -> bool:
    """Whether a value is of that kind, apart from its bounds."""
    if isinstance(kind, kinds.CollectionType | kinds.TupleType):
        return isinstance(value, list | tuple)
    if isinstance(kind, kinds.DictType):
        return isinstance(value, Mapping)
    if isinstance(kind, kinds.BoolType):
        return isinstance(value, bool)
    return not isinstance(value, list | tuple | Mapping | bool)


def _check(name: str, kind: kinds.Type, value: Any) -> Any:
    match kind:
        case kinds.IntType():
            return validate.whole(name, value, low=kind.ge, high=kind.le)
        case kinds.FloatType():
            unlimited = kind.gt is not None and kind.lt is None and kind.le is None
            if unlimited and value == math.inf:
                return value
            return validate.real(
                name, value, above=kind.gt, low=kind.ge, below=kind.lt, high=kind.le
            )
        case kinds.LiteralType():
            return validate.choice(name, value, [str(each) for each in kind.values])
        case kinds.BoolType():
            validate.kind(name, value, bool)
        case kinds.StrType():
            validate.kind(name, value, str)
            if kind.pattern and not re.search(kind.pattern, value):
                raise ValueError(f"Expected {name} to match {kind.pattern}, got {value!r}.")
        case kinds.TupleType(item_types=items):
            return tuple(_check(name, item, each) for item, each in zip(items, value, strict=True))
        case kinds.CollectionType(item_type=item):
            if not isinstance(value, list | tuple):
                raise TypeError(f"Expected {name} to be a list, got {value!r}.")
            parts = [_check(name, item, each) for each in value]
            return tuple(parts) if isinstance(kind, kinds.VarTupleType) else parts
        case kinds.DictType():
            if not isinstance(value, Mapping):
                raise TypeError(f"Expected {name} to be a table, got {value!r}.")
    return value


def _read(kind: kinds.Type, text: str) -> Any:
    """The value of a text; ValueError if it has none."""
    match kind:
        case kinds.IntType():
            return int(text)
        case kinds.FloatType():
            return float(text)
        case kinds.BoolType():
            return {"true": True, "false": False}[text] if text in ("true", "false") else int("")
        case kinds.CollectionType(item_type=item):
            if text.startswith("@") and isinstance(item, kinds.FloatType):
                text = ",".join(Path(text[1:]).read_text("utf-8").replace(",", " ").split())
            return [_read(item, part.strip()) for part in text.split(",")]
        case kinds.DictType():
            pairs = [part.partition("=") for part in text.split(",")]
            if not all(equals for _, equals, _ in pairs):
                raise ValueError
            return {key.strip(): plain(value) for key, _, value in pairs}
    return text


def plain(text: str) -> Any:
    """Return a text as a truth value or a number if it is one: `true`, `3`, `0.5`.

    Example:
        >>> plain("3"), plain("0.5"), plain("true"), plain("fan")
        (3, 0.5, True, 'fan')
    """
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _form(kind: kinds.Type) -> str:
    match kind:
        case kinds.IntType():
            return "INT"
        case kinds.FloatType():
            return "FLOAT"
        case kinds.LiteralType():
            return "CHOICE"
        case kinds.TupleType(item_types=items):
            return " ".join(map(_form, items))
        case kinds.CollectionType():
            return "A,B,..."
        case kinds.DictType():
            return "KEY=VALUE,..."
    return "TEXT"


def _called(kind: kinds.Type) -> str:
    match kind:
        case kinds.IntType():
            return "a whole number"
        case kinds.FloatType():
            return "a number"
        case kinds.BoolType():
            return "true or false"
        case kinds.TupleType(item_types=items):
            return " and ".join(map(_called, items))
        case kinds.CollectionType(item_type=item):
            return f"A,B,..., each {_called(item)}"
        case kinds.DictType():
            return "KEY=VALUE,..."
    return "a word"


@functools.cache
def _fields(record: type) -> dict[str, Any]:
    return hints(record)


def checked(record: Any) -> None:
    """Refuse a record with a field that is not as declared; see `check`."""
    for name, hint in _fields(type(record)).items():
        check(name, hint, getattr(record, name))


def defaults(record: type) -> dict[str, Any]:
    """Return the defaults of a dataclass's fields, for those that have one."""
    missing, found = dataclasses.MISSING, {}
    for field in dataclasses.fields(record):
        if field.default is not missing:
            found[field.name] = field.default
        elif field.default_factory is not missing:
            found[field.name] = field.default_factory()
    return found
