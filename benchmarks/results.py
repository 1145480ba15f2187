"""Writes what a benchmark measured, with the machine and the commit, to benchmarks/results/."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from randquant._internal.serialization import to_json, write_json
from randquant.cli.commands.bench import machine

FOLDER = Path(__file__).parent / "results"


def commit() -> str:
    """The commit that is measured."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=FOLDER.parent,
    ).stdout.strip()


def save(name: str, measured: dict, *, quiet: bool = False) -> None:
    FOLDER.mkdir(exist_ok=True)
    record = {"benchmark": name, "commit": commit(), "machine": machine(), **to_json(measured)}
    write_json(FOLDER / f"{name}.json", record)
    if not quiet:
        print(f"wrote benchmarks/results/{name}.json")


def stored(name: str) -> dict:
    """What was measured before; empty if nothing was."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def add(name: str, measured: dict) -> None:
    """Replace parts of what was measured before, and keep the others."""
    kept = {k: v for k, v in stored(name).items() if k not in ("benchmark", "commit", "machine")}
    save(name, {**kept, **measured}, quiet=True)
