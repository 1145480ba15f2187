"""A copy of the repository in which one mutant at a time is planted and tests are run."""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mutation.mutants import ROOT, SOURCE, Mutant

COPIED = ("src", "tests", "papers", "examples", "docs", "benchmarks", "pyproject.toml", "README.md")
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.egg-info", "gallery", ".hypothesis")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one run of tests.

    Attributes:
        outcome: `killed`, `survived` or `timed out`.
        by: the test that failed, if one did.
        seconds: how long it took.
    """

    outcome: str
    by: str
    seconds: float


class Workspace:
    """A temporary copy; a context manager.

    Compiled Python is checked by the hash of its source, and numba's kernels are kept in a cache of
    the copy. Its index goes by path, time and size, and a kernel is compiled with the constants
    and kernels that it uses: a mutated file with kernels gets an empty cache of its own.
    """

    def __enter__(self) -> Workspace:
        self.folder = Path(tempfile.mkdtemp(prefix="mutation-"))
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.folder / name, ignore=NOT_COPIED)
            else:
                shutil.copy2(ROOT / name, self.folder / name)
        checked = py_compile.PycInvalidationMode.CHECKED_HASH
        for name in ("src", "tests"):
            compileall.compile_dir(self.folder / name, quiet=1, invalidation_mode=checked)
        self._check_path()
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py"))],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_) -> None:
        self.server.kill()
        self.server.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, mutant: Mutant, limit: float) -> Verdict:
        """Plant a mutant, run its tests, restore the file."""
        path = self.folder / SOURCE / mutant.file
        original, status = path.read_bytes(), path.stat()
        path.write_text(mutant.text)
        cache = "numba"
        if "numba.njit" in mutant.text:
            cache = "numba-mutated"
            shutil.rmtree(self.folder / cache, ignore_errors=True)
        try:
            return self.test(mutant.tests, limit, cache)
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def test(self, tests: tuple[str, ...], limit: float, cache: str = "numba") -> Verdict:
        """Run tests on the copy as it is, for `limit` seconds at most."""
        started = time.perf_counter()
        output = self.folder / "output.txt"
        asked = {"tests": tests, "output": str(output), "limit": limit}
        asked["cache"] = str(self.folder / cache)
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        print(json.dumps(asked), file=self.server.stdin, flush=True)
        code, text = json.loads(self.server.stdout.readline()), output.read_text()
        seconds = time.perf_counter() - started
        if code is None:
            return Verdict("timed out", "", seconds)
        if code not in (0, 1, 2) and code >= 0:  # 2: a module that can no longer be imported
            raise RuntimeError(f"pytest ended with {code} for {tests}:\n{text}")
        failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR "))]
        return Verdict("killed" if code else "survived", "; ".join(failed), seconds)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(self.folder / "numba"),
            "HYPOTHESIS_PROFILE": "mutants",
        }

    def _check_path(self) -> None:
        """Another copy of the package on the path would make every mutant survive."""
        code = "import randquant; print(randquant.__file__)"
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        if not Path(found).is_relative_to(self.folder):
            raise RuntimeError(f"Expected to import the copy in {self.folder}, got {found}.")
