"""Every place that prints an epsilon rounds an upper bound up and a lower bound down."""

import contextlib
import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import problems
import pytest
from made_runs import finished, measured
from outward import FORMATTED, LOWER, PARAMETERS, UPPER, check_outward, to_nearest_in

import randquant as rq
from randquant import cli
from randquant._internal import formatting, round_down, round_up
from randquant.audit import Audit
from randquant.cli import guarantees as account_command
from randquant.cli import runs as runs_command
from randquant.cli import train as train_command
from randquant.planning import (
    Candidate,
    DecodedError,
    Limit,
    Need,
    NoiseSearch,
    Plan,
    Privacy,
    compare,
)
from randquant.privacy import Guarantee, Interval
from randquant.privacy.certificates import coordinate
from randquant.reports import channels as shown_channels
from randquant.reports import plan as plan_page
from randquant.reports import run as report
from randquant.reports import run as runs_page
from randquant.training import RunRecord, federated, schedule

CHANNEL = rq.stochastic_rounding(clip=0.1, levels=2, margin=0.1)
GUARANTEE = Guarantee(UPPER, 1e-5, "replace_one", "local", 2.0, 10)
CERTIFICATE = dataclasses.replace(rq.certify(CHANNEL), epsilon=Interval(LOWER, UPPER))
CONFIG = problems.config_of("digits", "softmax", "stochastic-rounding", PARAMETERS, rounds=2)
METRICS = [measured(at, epsilon=UPPER, participations=at) for at in (1, 2)]
FINISHED = [
    finished(Path(f"/runs/{k}"), CONFIG.changed(seed=k), GUARANTEE, *METRICS) for k in (1, 2)
]
RUN = RunRecord(CONFIG, METRICS, FINISHED[0].summary)
NOISE = DecodedError(1.0, 1.0, 0.1, 0.1)


def plan() -> Plan:
    need = Need(650, 10, 10, 5, UPPER, 1e-5, "local", Privacy(bits=1), 5)
    entry = Candidate("stochastic-rounding", PARAMETERS, GUARANTEE, NOISE, 100, 500)
    return Plan(need, [entry], [Limit("none", NOISE)], "useful", [], entry)


def comparison() -> compare.Comparison:
    entry = compare.make_entry("stochastic-rounding", CHANNEL, PARAMETERS)
    measured = dataclasses.replace(entry.measured, certificate=CERTIFICATE, renyi=CERTIFICATE)
    return compare.Comparison([dataclasses.replace(entry, measured=measured)], 2.0, UPPER, "mae")


def out_of_reach() -> str:
    search = NoiseSearch(
        lambda noise: None, lambda release: 1.0, 1.0, lambda epsilon: 1 / epsilon, 1.0, 2.0
    )
    search.tried = {1.0: UPPER}
    return str(search.out_of_reach(1e-5, 3))


def audited() -> Audit:
    values = {field.name: 1 for field in dataclasses.fields(Audit)}
    given = {"epsilon_lower": LOWER, "delta": 1e-5, "confidence": 0.95, "stated": GUARANTEE}
    more = {"hits": (1, 1), "ceiling": LOWER, "constant": False, "likelier": "update", "event": ""}
    return Audit(**{**values, **given, **more})


def of_the_accountant() -> str:
    line = "account stochastic-rounding --clip 0.1 --levels 2 --margin 0.1 --dimension 5 --rounds 2"
    with (
        mock.patch.object(account_command, "account", return_value=GUARANTEE),
        mock.patch.object(account_command, "certify", return_value=CERTIFICATE),
        contextlib.redirect_stdout(io.StringIO()) as shown,
    ):
        assert cli.main(line.split()) == 0
    return shown.getvalue()


def of_a_sum() -> str:
    found = rq.certify_sum(CHANNEL, 2, 2.0)
    return str(dataclasses.replace(found, epsilon=Interval(LOWER, UPPER)))


def of_a_family() -> str:
    search = SimpleNamespace(memory={0: SimpleNamespace(epsilon=UPPER)})
    return compare._Search.reason(search)


def of_a_metric() -> str:
    found = coordinate.certify_metric(CHANNEL, "l1")
    return str(dataclasses.replace(found, epsilon=Interval(LOWER, UPPER)))


def of_a_table(folder: Path = Path("/runs")) -> str:
    with mock.patch.object(train_command, "certify", return_value=CERTIFICATE):
        return "\n".join(train_command.finished_lines(folder, RUN))


UPPERS = {
    "accountant": of_the_accountant,
    "client on Flower": lambda: pytest.importorskip("randquant.rounds.limits")._shown(UPPER),
    "guarantee": lambda: str(GUARANTEE),
    "certificate": lambda: str(CERTIFICATE),
    "certificate of a sum": of_a_sum,
    "metric certificate": of_a_metric,
    "progress bar": lambda: federated._epsilon_text(METRICS[0]),
    "table of a run": of_a_table,
    "page of a run": lambda: report.render(RUN),
    "list of runs": lambda: "\n".join(runs_command._listed(FINISHED)),
    "runs compared": lambda: "\n".join(runs_command._comparison(FINISHED, ["stop_at_epsilon"])),
    "page of runs": lambda: runs_page.render_runs(FINISHED),
    "plan": lambda: "\n".join(plan_page.as_text(plan())),
    "page of a plan": lambda: plan_page.page(plan()),
    "comparison": lambda: "\n".join(shown_channels.comparison_text(comparison())),
    "page of a comparison": lambda: shown_channels.comparison_page(comparison()),
    "out of reach": out_of_reach,
    "end of a schedule": lambda: schedule._text(UPPER),
    "out of reach of a family": of_a_family,
    "column of epsilons": lambda: formatting.spent(UPPER),
    "bound": lambda: formatting.bound(UPPER),
}
LOWERS = {
    "lower end of a sum": of_a_sum,
    "audit": lambda: "\n".join(audited().lines()),
}


@pytest.mark.parametrize("name", [*LOWERS, *UPPERS])
def test_a_bound_is_printed_outward(name, monkeypatch):
    show, value = (UPPERS[name], UPPER) if name in UPPERS else (LOWERS[name], LOWER)
    check_outward(show, value, monkeypatch)


def test_no_epsilon_is_formatted_to_nearest():
    assert to_nearest_in(rq) == set()
    assert FORMATTED.search("{found.epsilon.upper:.6f}")  # what it is to catch


@pytest.mark.parametrize(
    ("value", "above", "below"),
    [
        (0.0, "0", "0"), (1.0, "1", "1"), (-1.0, "-1", "-1"), (1.23456789, "1.23457", "1.23456"),
        (-1.23456789, "-1.23456", "-1.23457"), (0.0001, "0.000100001", "0.0001"),
        (0.00012345678, "0.000123457", "0.000123456"), (9.5e-5, "9.50001e-5", "9.5e-5"),
        (-(2.0**-22), "-2.38418e-7", "-2.38419e-7"), (123456789.0, "123457000", "123456000"),
        (999999999.0, "1e+9", "999999000"), (1e9, "1e+9", "1e+9"), (2.5e9, "2.5e+9", "2.5e+9"),
    ],
)  # fmt: skip
def test_six_digits_and_an_exponent_beyond_a_billion_or_a_ten_thousandth(value, above, below):
    assert round_up(value) == above
    assert round_down(value) == below
