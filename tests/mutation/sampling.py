"""A sample of cosmic-ray's mutants, the same for the same seed: operators, comparisons, numbers."""

from __future__ import annotations

import ast
import functools
import random
import re
from collections.abc import Iterable
from pathlib import Path

from mutation.planting import ROOT, SOURCE, Mutant, source

REASONS = Path(__file__).with_name("equivalent.txt")
"""Mutants that were looked at and that nobody can notice."""


def sample(rooms: Iterable[str], count: int, seed: int) -> list[Mutant]:
    """So many mutants of rooms of the package: every line of code is as likely as any other."""
    files = [
        str(path.relative_to(ROOT / SOURCE))
        for room in sorted(rooms)
        for path in sorted((ROOT / SOURCE / room).rglob("*.py"))
    ]
    weights = [len(source(file).splitlines()) for file in files]
    draw, found = random.Random(f"{sorted(rooms)} {seed}"), {}
    while len(found) < count:
        (file,) = draw.choices(files, weights)
        places = _places(file)
        operator, occurrence = (
            draw.choice(places[draw.choice(sorted(places))]) if places else ("", 0)
        )
        mutant = _mutant(file, operator, occurrence) if operator else None
        if mutant is not None:
            found[mutant.text] = mutant
    return list(found.values())


@functools.cache
def _places(file: str) -> dict[tuple, list[tuple[str, int]]]:
    """(operator, occurrence) of every mutant of a file, by its place."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    nodes, places = list(ast_nodes(get_ast(source(file)))), {}
    for name in plugins.operator_names():
        operator = plugins.get_operator(name)
        if operator.arguments():
            continue
        found = (place for node in nodes for place in operator().mutation_positions(node))
        for occurrence, place in enumerate(found):
            places.setdefault(place, []).append((name, occurrence))
    return places


def _mutant(file: str, operator: str, occurrence: int) -> Mutant | None:
    """A mutant; None if it does not compile or means what the source means."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    text = source(file)
    changed = mutate_code(text, plugins.get_operator(operator)(), occurrence)
    try:
        if changed is None or _meaning(changed) == _meaning(text):
            return None
    except SyntaxError:
        return None
    before, after = _difference(text, changed)
    name = f"{operator.removeprefix('core/')}: {before}  ->  {after}"
    return Mutant(file, changed, name, excuse(file, before, after))


def _meaning(text: str) -> str:
    """What of a source counts: no comments, no texts that stand alone, no annotations of types."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.dump(tree)


def _difference(text: str, changed: str) -> tuple[str, str]:
    """The lines that differ, stripped, before and after."""
    before, after = text.splitlines(), changed.splitlines()
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    return " ".join(map(str.strip, before)), " ".join(map(str.strip, after))


@functools.cache
def _reasons() -> list[tuple[str, str, str, str]]:
    lines = [line for line in REASONS.read_text().splitlines() if line and line[0] != "#"]
    return [tuple(map(str.strip, line.split(";;"))) for line in lines]


def excuse(file: str, before: str, after: str) -> str:
    """Why nobody can notice a change of lines; empty if somebody can."""
    module = file.removesuffix(".py").replace("/", ".")
    for where, old, new, why in _reasons():
        if where == "*" and re.sub(old, new, before) == re.sub(old, new, after):
            return why
        if (where, old, new) == (module, before, after):
            return why
    return ""
