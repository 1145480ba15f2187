"""Hooks and fixtures of the tests, and which of them begin first."""

from everywhere import (  # noqa: F401 - hooks and fixtures
    browser,
    pytest_collect_file,
    pytest_collection_finish,
    pytest_itemcollected,
    pytest_runtest_call,
    pytest_runtest_setup,
    steady_examples,
    written_tolerances,
)

LONGEST = (
    "site", "flower_processes", "wheel", "flower_examples", "flower_template",
    "nvflare_simulator",
)  # fmt: skip
"""What takes a minute or more begins first, so that no worker is left alone with it at the end."""


def pytest_collection_modifyitems(items):
    place = {f"test_{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))
