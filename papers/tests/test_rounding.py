"""Every place that prints an epsilon rounds it up, as in the product's test of that name."""

import re
from pathlib import Path

import made_runs
import pytest
from made_runs import measured

import randquant_papers
from randquant import Guarantee, Interval
from randquant._internal import rounding
from randquant.training import TrainConfig
from randquant_papers import page, progress
from randquant_papers import result as reproduced
from randquant_papers.sweep import page as sweep_page
from randquant_papers.sweep.summary import as_text, results

UPPER = 7531.0 + 2.0**-30
"""To nearest this is printed as 7531, which is below it. Nothing else on a page is near."""

LOWER = 2468.0 - 2.0**-30
"""To nearest this is printed as 2468, which is above it."""

NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def near(text: str, value: float) -> list[float]:
    """The numbers of a text that stand for a value."""
    found = [float(number.rstrip(".,").replace(",", "")) for number in NUMBER.findall(text)]
    return [number for number in found if abs(number - value) < 1.5]


PARAMETERS = {"clip": 0.1, "levels": 2, "margin": 0.1}
CONFIG = TrainConfig.of("digits", "softmax", "stochastic-rounding", PARAMETERS, rounds=2)
GUARANTEE = Guarantee(UPPER, 1e-5, "replace_one", "local", 2.0, 10, LOWER)
ROUND = measured(1, epsilon=UPPER)
FINISHED = [
    made_runs.finished(Path(f"/runs/{k}"), CONFIG.changed(seed=k), GUARANTEE, ROUND) for k in (1, 2)
]


def reproduction() -> reproduced.Reproduction:
    claim = reproduced.Claim("a", "1", Interval(LOWER, UPPER), "holds", "")
    stated = reproduced.Stated("b", None, UPPER, "")
    table = reproduced.Table("c", ("epsilon",), [(Interval(LOWER, UPPER),)])
    return reproduced.Reproduction("n", "", "", "", [claim], [table], [], guarantees=[stated])


def bar() -> str:
    with progress.RunBars(quiet=True) as display:
        display.round(Path("a"), CONFIG, ROUND)
        return "\n".join(str(task.fields) for task in display._bars.tasks)


UPPERS = {
    "progress bar": bar,
    "sweep": lambda: "\n".join(as_text(Path("s"), results(FINISHED))),
    "page of a sweep": lambda: sweep_page.render("s", results(FINISHED)),
    "reproduction": lambda: "\n".join(reproduced.as_text(reproduction())),
    "page of a reproduction": lambda: page.as_page(reproduction()),
}


def to_nearest(value: float, rounding: str, digits: int, grouped: bool) -> str:
    return f"{value:,.{digits}g}" if grouped else f"{value:.{digits}g}"


@pytest.mark.parametrize("name", UPPERS)
def test_an_upper_bound_is_never_printed_below_itself(name, monkeypatch):
    found = near(UPPERS[name](), UPPER)
    assert found
    assert min(found) >= UPPER
    monkeypatch.setattr(rounding, "_rounded", to_nearest)  # the planted error
    assert min(near(UPPERS[name](), UPPER)) < UPPER


FORMATTED = re.compile(r"\{([^{}]*?):[,.]*\.?\d*[gfe]\}")
EXACT = {"epsilon", "a.epsilon", "cell.epsilon"}
"""Constants of the papers' grids, which six digits hold exactly."""


def test_no_epsilon_is_formatted_to_nearest():
    """Nothing that is called an epsilon, or an end of its interval, meets a plain format."""
    source, caught = Path(randquant_papers.__file__).parent, []
    for path in source.rglob("*.py"):
        for match in FORMATTED.finditer(path.read_text()):
            value = match[1]
            bound = "epsilon" in value or value.endswith((".upper", ".lower"))
            if bound and value not in EXACT:
                caught.append(f"{path.name}: {match[0]}")
    assert not caught
