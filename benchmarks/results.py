"""Writes what a benchmark measured, with the machine and the commit, to benchmarks/results/.

Each measurement is one line of JSON, so that a difference shows which were made again.
`python benchmarks/results.py` writes the stored files again in this form.
"""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from randquant._internal import to_json, write_atomic
from randquant.channels import cores

FOLDER = Path(__file__).parent / "results"

WIDTH = 120
"""Characters up to which a table is one line although it has tables in it."""


def commit() -> str:
    """The commit that is measured."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=FOLDER.parent,
    ).stdout.strip()


def machine() -> dict[str, Any]:
    """The machine and software of a benchmark."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def save(name: str, measured: dict, *, quiet: bool = False) -> None:
    FOLDER.mkdir(exist_ok=True)
    write(name, {"benchmark": name, "commit": commit(), "machine": machine(), **measured})
    if not quiet:
        print(f"wrote benchmarks/results/{name}.json")


def write(name: str, record: dict) -> None:
    """Write a record as it is, one measurement a line."""
    text = lines(to_json(record)) + "\n"
    write_atomic(FOLDER / f"{name}.json", text.encode())


def lines(value: Any, indent: str = "") -> str:
    """JSON in which a row of a list, and a table of numbers, is one line.

    Example:
        >>> print(lines({"delta": 0.1, "rows": [{"epsilon": 1.0, "ends": {"lower": 0.5}}]}))
        {
          "delta": 0.1,
          "rows": [
            {"epsilon": 1.0, "ends": {"lower": 0.5}}
          ]
        }
    """
    if _is_measurement(value):
        return json.dumps(value, allow_nan=False)
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {lines(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    parts = [inner + (lines(row, inner) if _has_rows(row) else json.dumps(row)) for row in value]
    return "[\n" + ",\n".join(parts) + f"\n{indent}]"


def _is_measurement(value: Any) -> bool:
    """Whether there is no table in it, or it is short."""
    items = _items(value)
    flat = not any(isinstance(item, dict | list) for item in items)
    # Of one case, with parts that are tables of numbers themselves.
    case = isinstance(value, dict) and any(not isinstance(item, dict | list) for item in items)
    parts = [part for item in items for part in _items(item)]
    case = case and not any(isinstance(part, dict | list) for part in parts)
    return flat or case or (len(json.dumps(value)) <= WIDTH and not _has_rows(value))


def _has_rows(value: Any) -> bool:
    """Whether there is a list of tables, each of which is a measurement of its own."""
    lists = [item for item in [value, *_items(value)] if isinstance(item, list)]
    return any(isinstance(row, dict) for rows in lists for row in rows)


def _items(value: Any) -> list:
    return (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else []
    )


def stored(name: str) -> dict:
    """What was measured before; empty if nothing was."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def add(name: str, measured: dict) -> None:
    """Replace parts of what was measured before, and keep the others."""
    kept = {k: v for k, v in stored(name).items() if k not in ("benchmark", "commit", "machine")}
    save(name, {**kept, **measured}, quiet=True)


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.json")):
        write(path.stem, stored(path.stem))
