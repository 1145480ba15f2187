"""What was measured, kept by mutant: to measure one again replaces what was known of it alone.

benchmarks/results/mutation.json has a row for each module and kind of list (hand-made, mechanical,
and fresh: mechanical, of a seed that no test was written for) and, for the next run, the verdicts
by the digest of each mutant.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping

from mutation.mechanical import FRESH, difference
from mutation.mutants import ROOT, Mutant, source
from mutation.workspace import Verdict

FILE = ROOT / "benchmarks" / "results" / "mutation.json"
PAGE = ROOT / "docs" / "how-it-is-checked.md"
TABLE = "| area | "
"""How the page's table of what was measured begins; it ends with an empty line."""
AREAS = {
    "privacy.certificates": "certify",
    "privacy.divergence": "divergence",
    "privacy.guarantee": "certify",
    "privacy.certificates.vector": "vector",
    "privacy.certificates.curvature": "vector",
    "privacy.certificates.sums": "sums",
    "privacy.accounting.composition": "composition",
    "privacy.accounting.amplification": "amplification",
    "privacy.accounting.sampled": "sampling",
    "privacy.accounting.allocated": "sampling",
    "privacy.accounting.release": "releases",
    "privacy.accounting.releases": "releases",
    "privacy.accounting": "account",
    "privacy.accounting.calibration": "calibrate",
    "privacy.accounting.noise_search": "calibrate",
    "privacy.accounting.ledger": "ledger",
    "channels.encoding": "encode",
    "channels.keys": "keys",
    "channels.wire": "wire",
    "aggregation": "aggregate",
    "aggregation.secagg": "secagg",
    "audit": "audit",
    "training": "training",
    "integrations": "flower",
    "integrations.ledger": "flower.ledger",
    "integrations.flower": "flower",
    "integrations.flower.ledger": "flower.ledger",
    "integrations.flower.mod": "flower.mod",
    "": "others",
}
"""A module or room, and the line of the page's table that it counts in: the longest that fits."""
OUTCOMES = ("killed", "timed out", "survived", "mended", "equivalent")
"""Mended: it survived once, and has been killed since."""
NOTICED = ("killed", "timed out", "mended")
Verdicts = dict[str, dict[str, dict[str, str]]]
"""Module, kind of list, digest: one of OUTCOMES."""


def kind(mutant: Mutant) -> str:
    """Which of a module's rows a mutant counts in."""
    return mutant.origin if mutant.origin in ("mechanical", FRESH) else "handmade"


def digests(mutants: Iterable[Mutant]) -> dict[Mutant, str]:
    """A short name for each that holds while its lines do, whatever else changes in the file."""
    seen: Counter[str] = Counter()
    named: dict[Mutant, str] = {}
    for mutant in mutants:
        change = difference(source(mutant.file), mutant.text)
        text = repr((mutant.file, kind(mutant), change))
        seen[text] += 1
        named[mutant] = hashlib.sha256(f"{text}{seen[text]}".encode()).hexdigest()[:10]
    return named


def read() -> Verdicts:
    """What was measured so far; nothing if there is no file."""
    if not FILE.exists():
        return {}
    known: Verdicts = {}
    for module, kinds in json.loads(FILE.read_text())["verdicts"].items():
        known[module] = {
            name: {one: outcome for outcome, those in by.items() for one in those.split()}
            for name, by in kinds.items()
        }
    return known


def pending(listed: Iterable[Mutant], mutants: Iterable[Mutant]) -> list[Mutant]:
    """Those of `mutants` that no saved run has noticed; `listed` are all, as for `merged`."""
    known, named = read(), digests(listed)
    return [
        mutant
        for mutant in mutants
        if known.get(mutant.module, {}).get(kind(mutant), {}).get(named[mutant]) not in NOTICED
    ]


def merged(
    known: Verdicts, listed: Iterable[Mutant], judged: Iterable[tuple[Mutant, Verdict | None]]
) -> Verdicts:
    """The verdicts with new ones; of a module that was run, only mutants that are still listed.

    Args:
        known: what `read` gives.
        listed: all mutants of the modules and kinds that were run, whether they were or not.
        judged: those that were run, with None for an equivalent one.
    """
    named = digests(listed)
    result = {module: dict(kinds) for module, kinds in known.items()}
    for module, name in {(mutant.module, kind(mutant)) for mutant in named}:
        old = known.get(module, {}).get(name, {})
        own = [m for m in named if (m.module, kind(m)) == (module, name)]
        kept = {named[m]: old[named[m]] for m in own if named[m] in old}
        result.setdefault(module, {})[name] = kept
    for mutant, verdict in judged:
        outcome = "equivalent" if verdict is None else verdict.outcome
        own = result[mutant.module][kind(mutant)]
        before = own.get(named[mutant])
        if kind(mutant) == FRESH and outcome in NOTICED and before in ("survived", "mended"):
            outcome = "mended"
        own[named[mutant]] = outcome
    return result


def rows(verdicts: Verdicts, listed: Iterable[Mutant], old: Mapping) -> dict[str, dict]:
    """Counts by module and kind; `score` is killed / (killed + survived), a time-out is a kill.

    `mended` of those that are killed survived at first.

    Modules and kinds without a listed mutant keep their old row.
    """
    named = digests(listed)
    table = {module: dict(kinds) for module, kinds in old.items()}
    for module, name in {(mutant.module, kind(mutant)) for mutant in named}:
        mine = verdicts[module][name]
        own = [m for m in named if (m.module, kind(m)) == (module, name)]
        count = Counter(mine.values())
        killed = sum(count[outcome] for outcome in NOTICED)
        measured = killed + count["survived"]
        table.setdefault(module, {})[name] = {
            "killed": killed,
            "timed_out": count["timed out"],
            "mended": count["mended"],
            "survived": count["survived"],
            "equivalent": count["equivalent"],
            "not_run": len(own) - len(mine),
            "score": round(killed / measured, 4) if measured else None,
            "survivors": [m.name for m in own if mine.get(named[m]) == "survived"],
        }
    return dict(sorted(table.items()))


def totals(table: Mapping[str, Mapping[str, Mapping]]) -> dict[str, dict]:
    """The sums over all modules, for each kind."""
    result: dict[str, dict] = {}
    for kinds in table.values():
        for name, row in kinds.items():
            total = result.setdefault(name, Counter())
            total.update({key: value for key, value in row.items() if isinstance(value, int)})
    for total in result.values():
        measured = total["killed"] + total["survived"]
        total.pop("score", None)
        total["score"] = round(total["killed"] / measured, 4) if measured else None
    return {name: dict(total) for name, total in result.items()}


def area(module: str) -> str:
    """Which line of the page's table a module counts in."""
    fits = [name for name in AREAS if not name or f"{module}.".startswith(f"{name}.")]
    return AREAS[max(fits, key=len)]


def page(table: Mapping[str, Mapping[str, Mapping]]) -> list[str]:
    """The page's table: of each area what became of both kinds of faults."""
    columns = ("killed", "mended", "survived", "equivalent", "not_run")
    counts: dict[str, Counter] = {name: Counter() for name in AREAS.values()}
    for module, kinds in table.items():
        for name, row in kinds.items():
            counts[area(module)].update({(name, column): row[column] for column in columns})
    lines = [
        TABLE + "fresh: at first | since | not noticed | nobody can | share at first | share now | "
        "first sample: noticed | not noticed | nobody can | "
        "by hand: noticed | not noticed | nobody can | not run |",
        "|---" * 13 + "|",
    ]
    for name in (*sorted(set(AREAS.values()) - {"others"}), "others", "all"):
        count = sum(counts.values(), Counter()) if name == "all" else counts[name]
        noticed, since, missed, nobody, _ = (count[FRESH, column] for column in columns)
        fresh = [noticed - since, since, missed, nobody]
        shares = [_share(part, noticed + missed) for part in (noticed - since, noticed)]
        others = [
            count[kind, column]
            for kind, left in (("mechanical", ("mended", "not_run")), ("handmade", ("mended",)))
            for column in columns
            if column not in left
        ]
        lines.append("| " + " | ".join(map(str, [name, *fresh, *shares, *others])) + " |")
    return lines


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def write_page(table: Mapping[str, Mapping[str, Mapping]]) -> None:
    """Put the table into the page, in place of the one that is there."""
    before, _, rest = PAGE.read_text().partition(TABLE)
    after = rest.partition("\n\n")[2]
    PAGE.write_text(before + "\n".join(page(table)) + "\n\n" + after)


def save(listed: list[Mutant], judged: Iterable[tuple[Mutant, Verdict | None]], seed: int) -> None:
    """Write FILE: rows of the modules that were run are new, the others stay."""
    import results  # benchmarks/

    old = json.loads(FILE.read_text())["modules"] if FILE.exists() else {}
    verdicts = merged(read(), listed, judged)
    table = rows(verdicts, listed, old)
    short = {
        module: {
            name: {o: " ".join(d for d, v in those.items() if v == o) for o in OUTCOMES}
            for name, those in kinds.items()
        }
        for module, kinds in sorted(verdicts.items())
    }
    measured = {
        "seed": seed,
        "totals": totals(table),
        "modules": table,
        "verdicts": short,
    }
    results.save("mutation", measured)
    write_page(table)
