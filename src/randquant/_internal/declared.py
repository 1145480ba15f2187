"""Settings declared once: the type, bounds, group and meaning of a value.

A declaration is a field of a dataclass or a parameter of a command's function. Its annotation has
the type. Bounds, and the group in which help shows it, are in a command's annotation too
(`Server[Count]`); classes that users make have them in the metadata of their fields (`setting`), so
that editors show plain types. The docstring has the meaning, in its `Args:` or `Attributes:`.
Options of commands, checks of records and JSON Schemas are all read from it. msgspec checks values;
`_refusal` rewrites its errors in our form.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from randquant._internal import validate

T = TypeVar("T")

Mechanism = Annotated[T, Meta(extra={"group": "mechanism"})]
Data = Annotated[T, Meta(extra={"group": "data"})]
Clients = Annotated[T, Meta(extra={"group": "clients"})]
Server = Annotated[T, Meta(extra={"group": "server"})]
Privacy = Annotated[T, Meta(extra={"group": "privacy"})]
Search = Annotated[T, Meta(extra={"group": "search"})]
Files = Annotated[T, Meta(extra={"group": "files"})]

Count = Annotated[int, Meta(ge=1)]

KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "array": "a list of values",
    "object": "a table, KEY=VALUE,...",
}
"""Words for the types in msgspec's errors."""


def setting(default: Any, group: str, **bounds: Any) -> Any:
    """Return a dataclass's field with a default, a group and bounds; see `rule`.

    Example:
        >>> @dataclasses.dataclass
        ... class Waiting:
        ...     rounds: int | None = setting(None, "server", ge=1)
        >>> Waiting().rounds, check("rounds", hints(Waiting)["rounds"], 3)
        (None, 3)
    """
    return dataclasses.field(default=default, metadata=rule(group, **bounds))


def rule(group: str, **bounds: Any) -> dict[str, Any]:
    """Return metadata of a field: its group, and bounds of its numbers or words as msgspec's Meta.

    A field without a group is no option of a command.
    """
    return {"group": Meta(extra={"group": group}), "bounds": Meta(**bounds)}


def hints(declaring: Any) -> dict[str, Any]:
    """Return the declarations of a dataclass or a function by name: annotations with meanings.

    Example:
        >>> def wait(rounds: Count, quiet: bool = False):
        ...     '''Wait.
        ...
        ...     Args:
        ...         rounds: how many.
        ...     '''
        >>> text(hints(wait)["rounds"]), text(hints(wait)["quiet"])
        ('how many', '')
    """
    # Lines of the docstring of the form "    name, name: text", with their continuation lines.
    listed = re.findall(r"(?m)^    ([\w, ]+): (.*(?:\n {8}.*)*)", inspect.getdoc(declaring) or "")
    texts = {
        name: " ".join(words.replace("`", "").split()).removesuffix(".")
        for names, words in listed
        for name in names.split(", ")
    }
    annotations = typing.get_type_hints(declaring, include_extras=True)
    for each in dataclasses.fields(declaring) if dataclasses.is_dataclass(declaring) else ():
        if "bounds" in each.metadata:
            hint = _bounded(annotations[each.name], each.metadata["bounds"])
            annotations[each.name] = Annotated[hint, each.metadata["group"]]
    return {name: with_meaning(hint, texts.get(name, "")) for name, hint in annotations.items()}


def _bounded(hint: Any, bounds: Meta) -> Any:
    # msgspec takes bounds of a number or a word, and not of a union with one.
    if get_origin(hint) in (typing.Union, types.UnionType):
        return Union[tuple(_bounded(each, bounds) for each in get_args(hint))]  # noqa: UP007
    return Annotated[hint, bounds] if hint in (int, float, str) else hint


def with_meaning(hint: Any, text: str) -> Any:
    return Annotated[hint, Meta(description=text)] if text else hint


def text(hint: Any) -> str:
    # Its meaning; empty for values that are not documented.
    return _meta(hint, lambda meta: meta.description)


def group(hint: Any) -> str:
    # Empty for values that users do not set.
    return _meta(hint, lambda meta: (meta.extra or {}).get("group"))


def form(hint: Any) -> str:
    """Return how lists and tables are written on a command line; empty for other values.

    Example:
        >>> form(int | None), form(int | list[float]), form(dict[str, float])
        ('', 'A,B,...', 'KEY=VALUE,...')
    """
    for leaf in leaves(hint):
        if get_origin(leaf) is list or ... in get_args(leaf):
            return "A,B,..."
        if get_origin(leaf) in (dict, Mapping):
            return "KEY=VALUE,..."
    return ""


def leaves(hint: Any) -> list[Any]:
    """Return the alternatives of an annotation, without None and without bounds.

    Example:
        >>> leaves(Server[Count | None]), leaves(int | list[float])
        ([<class 'int'>], [<class 'int'>, list[float]])
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return leaves(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return [leaf for each in arguments for leaf in leaves(each)]
    return [] if hint is types.NoneType else [hint]


def check(name: str, hint: Any, value: Any) -> Any:
    """Check a value against its declaration; return it converted to the declared type.

    Raises:
        TypeError: it has another type.
        ValueError: it is out of bounds or not one of the choices.

    Example:
        >>> check("rounds", Count, 0)
        Traceback (most recent call last):
        ...
        ValueError: Expected rounds >= 1, got rounds=0.
    """
    value = validate.number(value)  # msgspec knows Python's numbers only
    with refusing(name, hint, value):
        return msgspec.convert(value, hint)


def read(name: str, hint: Any, *texts: str) -> Any:
    """Read a value from texts on a command line.

    Lists are written A,B,C or @FILE, mappings KEY=VALUE,KEY=VALUE.

    Args:
        name: its name in messages.
        hint: its declaration.
        texts: one text, or one for each item of a tuple.

    Raises:
        TypeError, ValueError: the texts are not a value of the declared type.
        OSError: a file cannot be read.

    Example:
        >>> read("--bins", list[float], "-2,0,2"), read("--levels", int | None, "16")
        ([-2.0, 0.0, 2.0], 16)
        >>> read("--seed", int | None, "none") is None
        True
    """
    text, alternatives = texts[0], leaves(hint)
    numeric = {int, float} & {kind for leaf in alternatives for kind in (leaf, *get_args(leaf))}
    # Words stay texts unless the declaration has numbers: a client may be called "007".
    read_one = plain if numeric else str.strip
    if form(hint).startswith("KEY") and "=" in text:
        pairs = [part.partition("=") for part in text.split(",")]
        value: Any = {key.strip(): plain(word) for key, _, word in pairs}
    elif form(hint).startswith("A") and (len(alternatives) == 1 or "," in text or text[:1] == "@"):
        value = [read_one(part) for part in _listed(name, text).split(",")]
    else:
        value = [read_one(each) for each in texts] if len(texts) > 1 else read_one(text)
    converted = "null" if numeric and value == "none" else value  # msgspec's word for None
    with refusing(name, hint, value):
        return msgspec.convert(converted, hint, strict=False)


@contextlib.contextmanager
def refusing(name: str, hint: Any, value: Any) -> Iterator[None]:
    # Rewrites msgspec's errors, which name neither the setting nor its value.
    try:
        yield
    except msgspec.ValidationError as error:
        raise _refusal(str(error), name, hint, value) from None


def _refusal(problem: str, name: str, hint: Any, value: Any) -> Exception:
    # msgspec's errors are texts: "Expected `int` >= 1 - at `$.rounds[0]`". The path after "at"
    # leads to the wrong part of the value.
    problem, _, place = problem.partition(" - at ")
    for position, part in re.findall(r"\[(\d+)\]|\.(\w+)", place):
        name = f"{part} of {name}" if part else name
        value = value[part or int(position)]
    field = re.search(r"(missing|unknown).* `(\w+)`", problem)
    if field and field[1] == "missing":
        return ValueError(f"Expected {field[2]} of {name}, got {validate.shown(value)} without it.")
    if field:
        return ValueError(f"Expected only known settings of {name}, got {field[2]!r}.")
    literal = [leaf for leaf in leaves(hint) if get_origin(leaf) is Literal]
    if literal and (isinstance(value, str) or literal == leaves(hint)):
        validate.choice(name, value, [each for leaf in literal for each in get_args(leaf)])
    if "regex" in problem:
        return ValueError(f"Expected {name} ({text(hint)}), got {value!r}.")
    bound = re.search(r"[<>]=? \S+$", problem)
    if bound and "length" not in problem:
        return ValueError(f"Expected {name} {bound[0]}, got {name}={value}.")
    if "out of range" in problem:
        return ValueError(
            f"Expected {name} as a float, got {validate.shown(value)}: the number is too large."
        )
    expected = re.findall(r"`(.*?)`", problem)[0].split(" | ")
    called = " or ".join(KINDS[kind] for kind in expected if kind in KINDS)
    return TypeError(f"Expected {name} to be {called}, got {validate.shown(value)}.")


def _meta(hint: Any, part: Any) -> str:
    # The outermost annotation wins: a command's own meaning comes last.
    values = [part(meta) for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta)]
    return next(filter(None, reversed(values)), "")


def _listed(name: str, value: str) -> str:
    # The text of a list, or of the file in @FILE.
    if value[:1] != "@":
        return value
    try:
        return ",".join(Path(value[1:]).read_text("utf-8").replace(",", " ").split())
    except (OSError, UnicodeDecodeError) as error:
        raise OSError(f"Expected numbers for {name} in a file: {error}") from None


def plain(word: str) -> Any:
    """Return a word as a number or a truth value, if it is one.

    Example:
        >>> plain("3"), plain(".5"), plain("true"), plain("fan")
        (3, 0.5, True, 'fan')
    """
    for kind in (int, float, {"true": True, "false": False}.__getitem__):
        with contextlib.suppress(ValueError, KeyError):
            return kind(word)
    return word.strip()


_fields = functools.cache(hints)


def checked(record: Any) -> None:
    """Check all fields of a record, and store its numbers as declared; see `check`.

    Numbers of NumPy and integers in fields of float become Python's: equal records are then stored
    and hashed alike.
    """
    for name, hint in _fields(type(record)).items():
        value = check(name, hint, getattr(record, name))
        # A mechanism's parameters have no declared types: only their numbers are converted.
        if isinstance(value, Mapping):
            value = {name: validate.number(each) for name, each in value.items()}
        if type(value) in (int, float, dict):
            object.__setattr__(record, name, value)
