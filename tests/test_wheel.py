"""What is installed: the wheel has every file, its ranges meet the pins, older Pythons are kept."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import randquant as rq

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TRIED = VERSIONS[:3]
"""Versions that are claimed: the latest one is tried where it is found, and has not passed yet."""


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(each) for part in (PROJECT["dependencies"], *extras) for each in part]


def test_the_pinned_versions_lie_in_the_ranges_of_users():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(
        line.lower().replace("_", "-").split("==")
        for line in lines
        if "==" in line and line[0] != "#"
    )
    for each in requirements():
        name = each.name.lower().replace("_", "-")
        assert each.specifier.contains(pinned[name]), each
    assert not any(spec.operator == "==" for each in requirements() for spec in each.specifier)


def test_the_version_is_said_once():
    assert rq.__version__ == PROJECT["version"]
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_what_the_metadata_says_about_python_is_what_is_tried():
    named = {c.split(" :: ")[-1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert named == set(TRIED)
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert f"python: {list(TRIED)}".replace("'", '"') in workflow
    for version in set(VERSIONS) - set(TRIED):
        assert f'python: "{version}", experimental: true' in workflow
    systems = [c for c in PROJECT["classifiers"] if c.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"
    assert f"VERSIONS = {VERSIONS}".replace("'", '"') in (ROOT / "tests" / "wheels.py").read_text()


GONE = {
    "asynchat", "asyncore", "distutils", "imp", "smtpd",  # 3.12
    "aifc", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "mailcap", "msilib", "nis",
    "nntplib", "ossaudiodev", "pipes", "sndhdr", "spwd", "sunau", "telnetlib", "uu", "xdrlib",
    "lib2to3",  # 3.13
}  # fmt: skip
"""Modules of the standard library that 3.11 has and a later version has not."""


def test_nothing_that_later_pythons_dropped_is_imported():
    seen = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 11))):
            if isinstance(node, ast.Import):
                seen |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                seen.add((node.module or "").split(".")[0])
    assert {"json", "numpy"} <= seen
    assert not seen & GONE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "planted", "missing"),
    [
        (["--pythonversion", VERSIONS[-1]], ["Str"], []),
        # The other one stands behind a question for it.
        (["--pythonplatform", "Windows"], ["flock", "geteuid"], ["sched_getaffinity"]),
    ],
)
def test_the_types_are_right_for_other_pythons_and_without_posix(
    option, planted, missing, tmp_path
):
    """Pyright knows their standard libraries; `make check` asks its oldest one and this system."""
    path = tmp_path / "planted.py"
    path.write_text("import ast, fcntl, os\n\nast.Str\nfcntl.flock(3, 4)\nos.geteuid()\n")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *option]
    checked = subprocess.run(
        [*command, "src/randquant", str(path)], cwd=ROOT, capture_output=True, text=True
    )
    found = re.findall(r' - error: "?(\w+)', checked.stdout)
    assert sorted(found) == sorted(planted + missing), checked.stdout


@pytest.mark.slow
def test_the_wheel_has_every_file_and_works_where_it_is_installed(tmp_path):
    """Built and installed without a network; what it depends on is this environment's.

    From a copy: setuptools would pack what an earlier build has left in `build`.
    """
    listed = subprocess.run(
        ["git", "ls-files", "src", "pyproject.toml", "README.md", "LICENSE", "NOTICE"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    kept = {name for name in listed.stdout.split() if (ROOT / name).exists()}
    for name in kept:
        copy = tmp_path / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", tmp_path, tmp_path / "source"],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if name.startswith("randquant/")}
        opened.extractall(tmp_path / "installed")
    assert packed == {name.removeprefix("src/") for name in kept if name.startswith("src/")}
    program = "import randquant as rq; print(rq.__file__); print(rq.__version__)"
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
    )  # fmt: skip
    file, version = ran.stdout.split()
    assert Path(file).is_relative_to(tmp_path)
    assert Version(version) == Version(PROJECT["version"])
