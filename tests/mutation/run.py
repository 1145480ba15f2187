"""Mutation score: how many planted faults do the tests notice?

    python tests/mutation/run.py                                  every hand-made mutant
    python tests/mutation/run.py --module vector                  those of one file, folder or list
    python tests/mutation/run.py --module vector --mechanical 25  and a sample of cosmic-ray's

A time-out counts as killed. Prints one line a mutant and a table, and with --save writes what was
run into benchmarks/results/mutation.json, beside what is known of other mutants.
"""

from __future__ import annotations

import argparse
import dataclasses
import queue
import random
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutation import record
from mutation.mechanical import FRESH, fresh, sample
from mutation.mutants import ROOT, Mutant, handmade
from mutation.tests_of import TESTS
from mutation.workspace import Verdict, Workspace

FAILURES = ("FAILED tests/", "FAILED src/", "ERROR tests/")
"""How lines begin that name a test."""
QUICK = 4
"""How many tests that killed other mutants of a module come first."""

Judged = tuple[Mutant, Verdict | None]
"""A mutant, and what became of it; None where it is equivalent and was not run."""


def main() -> None:
    """Run what the command line asks for."""
    asked = arguments()
    if asked.table:
        table()
        return
    everything = [] if asked.mechanical_only else list(handmade())
    if asked.mechanical:
        files = [file for file in TESTS if chosen(Mutant(file, "", "", ()), asked.module)]
        everything += [m for file in files for m in sample(file, asked.mechanical, asked.seed)]
    mutants = [m for m in everything if chosen(m, asked.module) and asked.match in m.name]
    if not mutants:
        sys.exit(f"Expected mutants of {asked.module}, found none.")
    modules = {m.module for m in mutants}
    listed = [m for m in everything if m.module in modules]
    if asked.seed:
        listed = together(listed)
    if asked.pending:
        mutants = record.pending(listed, mutants)
    if asked.shuffle:
        random.Random(asked.seed).shuffle(mutants)
    kept = saved(listed, asked.seed) if asked.save else None
    judged = run(mutants, asked.workers, asked.limit, kept)
    print("\n" + "\n".join(lines(scores(judged))))


def table() -> None:
    """Count again what is known: faults whose lines are others since have no verdict."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    known = record.read()
    files = [file for file in TESTS if FRESH in known.get(Mutant(file, "", "", ()).module, {})]
    listed = [*handmade(), *(mutant for file in files for mutant in fresh(file))]
    record.save(listed, [(mutant, None) for mutant in listed if mutant.equivalent], 0)


def saved(listed: list[Mutant], seed: int) -> Callable[[Judged], None]:
    """What keeps one verdict beside the others, so that a run can be stopped at any time."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    one_at_a_time = threading.Lock()

    def keep(judged: Judged) -> None:
        mutant = judged[0]
        same = (mutant.module, record.kind(mutant))
        beside = [m for m in listed if (m.module, record.kind(m)) == same]
        with one_at_a_time:
            record.save(beside, [judged], seed)

    return keep


def together(listed: list[Mutant]) -> list[Mutant]:
    """With those of the other fresh seeds, so that what is known of them is kept."""
    files = dict.fromkeys(m.file for m in listed if record.kind(m) == FRESH)
    others = [m for file in files for m in fresh(file)]
    return list({m.text: m for m in (*others, *listed)}.values())


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--module", help="file, folder or list of mutants: vector, composition")
    parser.add_argument("--mechanical", type=int, default=0, help="how many a module")
    parser.add_argument("--mechanical-only", action="store_true", help="no hand-made mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the mechanical sample")
    parser.add_argument("--match", default="", help="only mutants with this text in their line")
    parser.add_argument("--workers", type=int, default=2, help="how many run at a time")
    parser.add_argument("--pending", action="store_true", help="only those not known as killed")
    parser.add_argument("--table", action="store_true", help="count again, and run nothing")
    parser.add_argument("--limit", type=float, help="seconds a mutant, if not by what tests take")
    parser.add_argument("--shuffle", action="store_true", help="in random order, fair if stopped")
    parser.add_argument("--save", action="store_true", help="write each into benchmarks/results")
    return parser.parse_args()


def chosen(mutant: Mutant, module: str | None) -> bool:
    """Whether a mutant is of a file, a folder or a list."""
    names = (mutant.origin, mutant.module, mutant.file, *mutant.module.split("."))
    return module is None or module in names


def run(
    mutants: list[Mutant],
    workers: int,
    seconds: float | None = None,
    kept: Callable[[Judged], None] | None = None,
) -> list[Judged]:
    """What becomes of each; tests must pass on code without a fault.

    Args:
        mutants: what is planted, one at a time.
        workers: how many copies of the repository work beside each other.
        seconds: a limit for each, and then only tests that failed are run without a fault; without
            it all of them are, first, and the limit is twice what they take, and twenty more.
        kept: called with each verdict as soon as it is known.
    """
    real = [mutant for mutant in mutants if not mutant.equivalent]
    # The package's own files last: pytest would import them before the package, and shadow names.
    named = {test for mutant in real for test in mutant.tests}
    tests = tuple(sorted(named, key=lambda test: (test.startswith("src"), test)))
    spaces: queue.Queue[Workspace] = queue.Queue()
    with ExitStack() as stack:
        for _ in range(max(1, min(workers, len(real)))):
            spaces.put(stack.enter_context(Workspace()))
        limit = 20 + 2 * baseline(spaces, tests) if seconds is None else seconds
        killers: dict[str, list[str]] = {}
        passed: set[str] = set()

        def judge(mutant: Mutant) -> Judged:
            verdict = None if mutant.equivalent else planted(mutant)
            if kept is not None:
                kept((mutant, verdict))
            return mutant, verdict

        def planted(mutant: Mutant) -> Verdict:
            space = spaces.get()
            try:
                verdict = space.run(ordered(mutant, killers), limit)
                if seconds is not None and verdict.outcome == "killed":
                    confirm(space, verdict, mutant.tests, passed)
            finally:
                spaces.put(space)
            learn(mutant, verdict, killers)
            mark = f"{verdict.outcome:9} {verdict.seconds:4.0f} s"
            print(f"{mark}  {mutant.module}: {mutant.name}  {verdict.by[:120]}", flush=True)
            return verdict

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(judge, mutants))


def ordered(mutant: Mutant, killers: dict[str, list[str]]) -> Mutant:
    """A mechanical mutant whose tests begin with those that killed others of its module."""
    if record.kind(mutant) == "handmade":
        return mutant
    first = killers.get(mutant.module, [])[:QUICK]
    return dataclasses.replace(mutant, tests=(*first, *mutant.tests))


def confirm(space: Workspace, verdict: Verdict, tests: tuple[str, ...], passed: set[str]) -> None:
    """What failed with a fault must pass without it; `passed` is what is known to."""
    lines = [line.split()[1] for line in verdict.by.split("; ") if line.startswith(FAILURES)]
    failed = {test.partition("[")[0] for test in lines} or set(tests)
    if failed <= passed:
        return
    clean = space.test(tuple(sorted(failed)), 3600)
    if clean.outcome != "survived":
        sys.exit(f"Tests fail without a mutant: {clean.by}")
    passed |= failed


def learn(mutant: Mutant, verdict: Verdict, killers: dict[str, list[str]]) -> None:
    """Put the test that killed a mutant before all others of its module."""
    words = verdict.by.split()
    test = words[1].partition("[")[0] if verdict.by.startswith("FAILED tests/") else ""
    if test:
        others = [other for other in killers.get(mutant.module, []) if other != test]
        killers[mutant.module] = [test, *others]


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


if __name__ == "__main__":
    main()
