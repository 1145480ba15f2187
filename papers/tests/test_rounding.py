"""Every place that prints an epsilon rounds it up, as in the product's test of that name."""

from pathlib import Path

import made_runs
import pytest
from made_runs import measured
from outward import LOWER, PARAMETERS, UPPER, check_outward, to_nearest_in

import randquant_papers
from randquant import Guarantee, Interval
from randquant_papers import page, progress
from randquant_papers import result as reproduced
from randquant_papers.configuration import PaperConfig
from randquant_papers.sweep import page as sweep_page
from randquant_papers.sweep.summary import as_text, results

CONFIG = PaperConfig.of("digits", "softmax", "stochastic-rounding", PARAMETERS, rounds=2)
GUARANTEE = Guarantee(UPPER, 1e-5, "replace_one", "local", 2.0, 10)
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


@pytest.mark.parametrize("name", UPPERS)
def test_an_upper_bound_is_never_printed_below_itself(name, monkeypatch):
    check_outward(UPPERS[name], UPPER, monkeypatch)


EXACT = {"epsilon", "a.epsilon", "cell.epsilon"}
"""Constants of the papers' grids, which six digits hold exactly."""


def test_no_epsilon_is_formatted_to_nearest():
    assert to_nearest_in(randquant_papers) <= EXACT
