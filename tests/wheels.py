"""Installs a wheel into empty environments: `python tests/wheels.py dist` (`make wheel-test`).

For every Python 3.11 to 3.14 on this machine the wheel is installed with what it depends on, and a
mechanism is certified, sampled and decoded; with `--extra train` a model is trained as well. Needs
nothing but the standard library. Versions that are not found are named, and are no failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
CORE = """
import numpy as np, randquant as rq, sys
channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
assert abs(rq.certify(channel, order=8.0).epsilon.upper - 5.34423) < 1e-4
x = np.linspace(-1.5, 1.5, 1000, dtype=np.float32)
codes = rq.encode(channel, x, rq.Key.generate())
assert rq.decode(channel, codes).shape == x.shape
assert "torch" not in sys.modules
print("randquant", rq.__version__, "on Python", sys.version.split()[0])
"""
DEMO = Path(__file__).parents[1] / "examples" / "digits.py"
COMMANDS = {
    "": ["certify", "rqm", "--clip", "1", "--margin", "1", "--levels", "4", "--keep", "0.5"],
    "train": ["train", str(DEMO), "--epsilon", "8", "--rounds", "2"],
}


def interpreter(version: str) -> str | None:
    """A Python of this version that runs: on the path, or one that pyenv installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for each in (f"python{version}", *sorted(pyenv.glob(f"{version}.*/bin/python"))):
        found = shutil.which(each)
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    return None


def install(python: str, wheel: Path, folder: Path, extra: str) -> Path:
    """Make an environment with the wheel; return its folder of programs."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    pinned = ["-c", str(Path(__file__).parents[1] / "constraints.txt")] if extra else []
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [folder / "bin" / "pip", "install", *quiet, "--only-binary=:all:", *pinned, wanted],
        check=True,
    )
    return folder / "bin"


def main() -> int:
    """Test the newest wheel of a folder with all versions of Python that are here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the wheel")
    parser.add_argument("--extra", default="", choices=COMMANDS, help="extra to install as well")
    chosen = parser.parse_args()
    (wheel,) = sorted(chosen.folder.resolve().glob("*.whl"))
    found = {version: interpreter(version) for version in VERSIONS}
    missing = [version for version, python in found.items() if python is None]
    for python in filter(None, found.values()):
        with tempfile.TemporaryDirectory() as folder:
            programs = install(python, wheel, Path(folder, "env"), chosen.extra)
            subprocess.run([programs / "python", "-c", CORE], check=True, cwd=folder)
            subprocess.run(
                [programs / "randquant", *COMMANDS[chosen.extra]], check=True, cwd=folder
            )
    if missing:
        print(f"not here, so not tested: Python {', '.join(missing)}", file=sys.stderr)
    return int(len(missing) == len(VERSIONS))


if __name__ == "__main__":
    raise SystemExit(main())
