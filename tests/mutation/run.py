"""How many planted faults do the tests notice?

    python tests/mutation/run.py --sample 20 --seed 3             a generated sample
    python tests/mutation/run.py --rooms audit --sample 5         of other rooms

Each is planted in a copy of the repository. The tests of its module are run first, then those of
its room, then all that are not slow; the first that fails ends it, and must pass without the fault.
With --save what became of a sample is written to benchmarks/results/mutation.json.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutation.planting import ROOT, SOURCE, Mutant, source
from mutation.sampling import sample

ROOMS = ("privacy", "aggregation", "channels", "secure_sums")
LEFT_OUT = {"build", "dist", "gallery", "runs"}
"""Folders of the checkout that hold no source."""
SKIPPED = (
    "tests/test_site.py",
    "tests/test_wheel.py",
    "tests/test_docs.py",
)
"""Tests that need the whole checkout or mind each line."""


def stages(file: str) -> list[list[str]]:
    """Tests of a module, by their names; of its room; and all."""
    room, *parts = file.removesuffix(".py").split("/")
    names = tuple(f"test_{part}" for part in parts)
    own = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests" / room).glob("test_*.py"))
        if path.stem.startswith(names)
    ]
    values = ["tests/test_values.py"] if "@dataclass" in source(file) else []
    return [[*own, *values, str(SOURCE / file)], [f"tests/{room}"], ["tests", "src"]]


def _left_out(folder: str, names: list[str]) -> set[str]:
    hidden = {name for name in names if name.startswith(".") or name == "__pycache__"}
    return hidden | (LEFT_OUT if Path(folder) == ROOT else set())


class Copy:
    """A copy of the repository in which tests are run; a context manager."""

    def __enter__(self) -> Copy:
        self.folder = Path(tempfile.mkdtemp(prefix="mutation-")) / "randquant"
        shutil.copytree(ROOT, self.folder, ignore=_left_out)
        self.sound: set[str] = set()
        return self

    def __exit__(self, *_) -> None:
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    def judge(self, mutant: Mutant, limit: float, steps: int) -> tuple[str, str]:
        """`noticed`, `survived` or `timed out`, and the test that failed."""
        path = self.folder / SOURCE / mutant.file
        path.write_text(mutant.text)
        failed = ""
        try:
            for tests in stages(mutant.file)[:steps]:
                failed = self.fails(tests, limit, "numba.njit" in mutant.text)
                if failed:
                    break
        except subprocess.TimeoutExpired:
            return "timed out", ""
        finally:
            shutil.copy2(ROOT / SOURCE / mutant.file, path)
        if failed.startswith("tests/") and failed not in self.sound:
            if self.fails([failed], limit):
                sys.exit(f"{failed} fails without a fault.")
            self.sound.add(failed)
        return ("noticed", failed) if failed else ("survived", "")

    def fails(self, tests: list[str], limit: float, kernels: bool = False) -> str:
        """The first test that fails, without its parameters; a module whose import fails counts.

        numba knows a kernel by its file, not by the kernels that it calls: where a file with
        kernels is changed, its cache is of that run alone.
        """
        cache = self.folder / ("numba-changed" if kernels else "numba")
        if kernels:
            shutil.rmtree(cache, ignore_errors=True)
        skipped = [f"--ignore={self.folder / test}" for test in SKIPPED]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m"]
        done = subprocess.run(
            [*command, "not slow", *skipped, *tests], cwd=self.folder, env=self._environment(cache),
            capture_output=True, text=True, timeout=limit, check=False,
        )  # fmt: skip
        if done.returncode in (0, 5):
            return ""
        line = re.search(r"^(?:FAILED|ERROR) (\S+?)(?:\[|\s|$)", done.stdout, re.MULTILINE)
        return line[1] if line else f"pytest ended with {done.returncode}"

    def _environment(self, cache: Path) -> dict[str, str]:
        paths = [str(self.folder / "src"), str(self.folder / "papers" / "src")]
        return {
            **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(cache), "HYPOTHESIS_PROFILE": "mutants", "OMP_NUM_THREADS": "1",
        }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--sample", type=int, default=20, help="how many generated mutants")
    asked.add_argument("--seed", type=int, default=0, help="of the sample")
    asked.add_argument("--rooms", nargs="+", default=ROOMS, help="that the sample is drawn from")
    asked.add_argument("--match", default="", help="only those with this text in file or name")
    asked.add_argument("--quick", action="store_true", help="not the tests of other rooms")
    asked.add_argument("--limit", type=float, default=1800, help="seconds of each stage")
    asked.add_argument("--save", action="store_true", help="keep what became of the sample")
    given = asked.parse_args()
    mutants = sample(given.rooms, given.sample, given.seed)
    rows = judged([m for m in mutants if given.match in f"{m.file} {m.name}"], given)
    show(rows)
    if given.save:
        sys.path.insert(0, str(ROOT / "benchmarks"))
        import results

        results.save("mutation", {"rooms": given.rooms, "seed": given.seed, "faults": rows})


def judged(mutants: list[Mutant], given: argparse.Namespace) -> list[dict]:
    """What became of each, printed as it comes."""
    rows = []
    with Copy() as copy:
        for mutant in mutants:
            started = time.perf_counter()
            outcome, by = ("excused", mutant.excuse)
            if not mutant.excuse:
                outcome, by = copy.judge(mutant, given.limit, 2 if given.quick else 3)
            seconds = round(time.perf_counter() - started)
            row = {"file": mutant.file, "fault": mutant.name, "outcome": outcome, "by": by}
            rows.append({**row, "seconds": seconds})
            print(f"{outcome:9} {seconds:5} s  {mutant.file}: {mutant.name}  {by}", flush=True)
    return rows


def show(rows: list[dict]) -> None:
    """Counts by room and outcome, then what survived."""
    count = Counter((row["file"].split("/")[0], row["outcome"]) for row in rows)
    print(
        "", *(f"{room}: {number} {outcome}" for (room, outcome), number in count.items()), sep="\n"
    )
    for row in rows:
        if row["outcome"] == "survived":
            print(f"survived  {row['file']}: {row['fault']}")


if __name__ == "__main__":
    main()
