"""Mutation score: how many planted faults do the tests notice?

    python tests/mutation/run.py                                  every hand-made mutant
    python tests/mutation/run.py --module vector                  those of one file, folder or list
    python tests/mutation/run.py --module vector --mechanical 25  and a sample of cosmic-ray's

A time-out counts as killed. Prints one line a mutant and a table, and with --save writes
benchmarks/results/mutation.json.
"""

from __future__ import annotations

import argparse
import queue
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutation.mechanical import sample
from mutation.mutants import ROOT, Mutant, handmade
from mutation.tests_of import TESTS
from mutation.workspace import Verdict, Workspace

Judged = tuple[Mutant, Verdict | None]
"""A mutant, and what became of it; None where it is equivalent and was not run."""


def main() -> None:
    """Run what the command line asks for."""
    asked = arguments()
    mutants = [m for m in handmade() if chosen(m, asked.module) and not asked.mechanical_only]
    if asked.mechanical:
        files = [file for file in TESTS if chosen(Mutant(file, "", "", ()), asked.module)]
        mutants += [m for file in files for m in sample(file, asked.mechanical, asked.seed)]
    mutants = [m for m in mutants if asked.match in m.name]
    if not mutants:
        sys.exit(f"Expected mutants of {asked.module}, found none.")
    judged = run(mutants, asked.workers)
    table = scores(judged)
    print("\n" + "\n".join(lines(table)))
    if asked.save:
        save(table, judged, asked)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--module", help="file, folder or list of mutants: vector, composition")
    parser.add_argument("--mechanical", type=int, default=0, help="how many a module")
    parser.add_argument("--mechanical-only", action="store_true", help="no hand-made mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the mechanical sample")
    parser.add_argument("--match", default="", help="only mutants with this text in their line")
    parser.add_argument("--workers", type=int, default=2, help="how many run at a time")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    return parser.parse_args()


def chosen(mutant: Mutant, module: str | None) -> bool:
    """Whether a mutant is of a file, a folder or a list."""
    names = (mutant.origin, mutant.module, mutant.file, *mutant.module.split("."))
    return module is None or module in names


def run(mutants: list[Mutant], workers: int) -> list[Judged]:
    """What becomes of each; tests must pass on code without a fault first."""
    real = [mutant for mutant in mutants if not mutant.equivalent]
    # The package's own files last: pytest would import them before the package, and shadow names.
    named = {test for mutant in real for test in mutant.tests}
    tests = tuple(sorted(named, key=lambda test: (test.startswith("src"), test)))
    spaces: queue.Queue[Workspace] = queue.Queue()
    with ExitStack() as stack:
        for _ in range(max(1, min(workers, len(real)))):
            spaces.put(stack.enter_context(Workspace()))
        limit = 60 + 3 * baseline(spaces, tests)

        def judge(mutant: Mutant) -> Judged:
            if mutant.equivalent:
                return mutant, None
            space = spaces.get()
            try:
                verdict = space.run(mutant, limit)
            finally:
                spaces.put(space)
            mark = f"{verdict.outcome:9} {verdict.seconds:4.0f} s"
            print(f"{mark}  {mutant.module}: {mutant.name}  {verdict.by[:120]}", flush=True)
            return mutant, verdict

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(judge, mutants))


def baseline(spaces: queue.Queue[Workspace], tests: tuple[str, ...]) -> float:
    """Seconds that the tests take on code without a fault; they must pass."""
    space = spaces.get()
    verdict = space.test(tests, 3600) if tests else Verdict("survived", "", 0.0)
    spaces.put(space)
    if verdict.outcome != "survived":
        sys.exit(f"Tests fail without a mutant: {verdict.by}")
    print(f"without a mutant the tests pass in {verdict.seconds:.0f} s", flush=True)
    return verdict.seconds


def scores(judged: Iterable[Judged]) -> dict[str, dict]:
    """Counts by module, survivors listed; `score` is killed / (killed + survived)."""
    table: dict[str, dict] = {}
    for mutant, verdict in judged:
        empty = {"killed": 0, "timed_out": 0, "survived": 0, "equivalent": 0, "survivors": []}
        row = table.setdefault(mutant.module, empty)
        if verdict is None:
            row["equivalent"] += 1
        elif verdict.outcome == "survived":
            row["survived"] += 1
            row["survivors"].append(mutant.name)
        else:
            row["killed"] += 1
            row["timed_out"] += verdict.outcome == "timed out"
    for row in table.values():
        run = row["killed"] + row["survived"]
        row["score"] = round(row["killed"] / run, 4) if run else None
    return dict(sorted(table.items()))


def lines(table: dict[str, dict]) -> list[str]:
    """The table as text."""
    columns = ("killed", "timed_out", "survived", "equivalent")
    total = {column: sum(row[column] for row in table.values()) for column in columns}
    run = total["killed"] + total["survived"]
    rows = [*table.items(), ("all", {**total, "score": total["killed"] / run if run else None})]
    text = [f"{'module':28} killed (by time)  survived  equivalent  score"]
    for name, row in rows:
        score = "-" if row["score"] is None else f"{row['score']:.1%}"
        numbers = f"{row['killed']:6} {row['timed_out']:9}  {row['survived']:8}"
        text.append(f"{name:28} {numbers}  {row['equivalent']:10}  {score:>6}")
    return text


def save(table: dict[str, dict], judged: list[Judged], asked: argparse.Namespace) -> None:
    """Write benchmarks/results/mutation.json."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import results

    measured = {
        "mutants": len(judged),
        "mechanical_per_module": asked.mechanical,
        "seed": asked.seed,
        "modules": table,
    }
    results.save("mutation", measured)


if __name__ == "__main__":
    main()
