"""A seeded sample of cosmic-ray's mutants: operators, comparisons, numbers, breaks, decorators."""

from __future__ import annotations

import random
from collections.abc import Iterator

from mutation.equivalent import equivalent
from mutation.mutants import Mutant, meaning, source, tests_of

FRESH = "fresh"
"""Origin of mutants that were drawn with another seed than the tests were mended with, 0."""
FRESH_SEEDS, MOST = (7, 11), 10
"""Seeds whose verdicts are kept beside each other, and how many of each at most, a file."""


def fresh(file: str) -> list[Mutant]:
    """All mutants of a file of which a fresh verdict may be known, each once."""
    drawn = [mutant for seed in FRESH_SEEDS for mutant in sample(file, MOST, seed)]
    return list({mutant.text: mutant for mutant in drawn}.values())


def sample(file: str, count: int, seed: int) -> list[Mutant]:
    """`count` mutants of a file at as many different places, the same for the same seed."""
    origin = FRESH if seed else "mechanical"
    text = source(file)
    same = meaning(text)
    places: dict[tuple, list[tuple[str, int]]] = {}
    for operator, occurrence, place in _positions(text):
        places.setdefault(place, []).append((operator, occurrence))
    draw = random.Random(f"{file} {seed}")
    order = sorted(places)
    draw.shuffle(order)
    found: list[Mutant] = []
    for place in order:
        if len(found) == count:
            break
        operator, occurrence = draw.choice(places[place])
        changed = _mutated(text, operator, occurrence)
        if changed is not None and meaning(changed) != same:
            found.append(_mutant(file, text, changed, operator, origin))
    return found


def _mutant(file: str, text: str, changed: str, operator: str, origin: str) -> Mutant:
    before, after = difference(text, changed)
    name = f"{operator.removeprefix('core/')}: {before}  ->  {after}"
    return Mutant(file, changed, name, tests_of(file), equivalent(file, before, after), origin)


def difference(text: str, changed: str) -> tuple[str, str]:
    """The lines that differ, stripped, before and after."""
    before, after = text.splitlines(), changed.splitlines()
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    return " ".join(map(str.strip, before)), " ".join(map(str.strip, after))


def _positions(text: str) -> Iterator[tuple[str, int, tuple]]:
    """(operator, occurrence, place) of every mutant."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    nodes = list(ast_nodes(get_ast(text)))
    for name in plugins.operator_names():
        operator = plugins.get_operator(name)
        if operator.arguments():
            continue
        found = (place for node in nodes for place in operator().mutation_positions(node))
        for occurrence, place in enumerate(found):
            yield name, occurrence, place


def _mutated(text: str, operator: str, occurrence: int) -> str | None:
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    changed = mutate_code(text, plugins.get_operator(operator)(), occurrence)
    try:
        compile(changed or "", "mutant", "exec")
    except SyntaxError:
        return None
    return changed
