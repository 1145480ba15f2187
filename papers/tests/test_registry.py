"""Each reproduction runs, and its numbers are those of slow, independent arithmetic."""

import functools
import itertools
import json
import math
import re
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import oracle
import pytest
from pages import Page, check_charts, check_self_contained
from reproduced import reproduced
from scipy import integrate

import randquant as rq
from randquant.privacy import Interval
from randquant_papers import cli
from randquant_papers.gallery import gallery
from randquant_papers.optm import tables as optm_paper
from randquant_papers.qmgeo import tables as qmgeo_paper
from randquant_papers.registry import ENTRIES
from randquant_papers.result import Claim, Reproduction, agrees, as_text
from randquant_papers.rqm import tables as rqm
from randquant_papers.rqm import trade_offs

ENDS = (-1.5, 1.5)
PAPER_KEEP = Fraction(0.42)  # the double that is meant by 0.42


def claim(result: Reproduction, *words: str) -> Claim:
    """The one claim whose text has all the words."""
    (only,) = [c for c in result.claims if all(word in c.text for word in words)]
    return only


def upper(value: object) -> float:
    assert isinstance(value, Interval)
    return value.upper


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_is_text_json_and_a_page(name, capsys, tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    entry = reproduced(name)
    monkeypatch.setitem(ENTRIES, name, lambda: entry)  # it takes seconds
    assert cli.main(["reproduce", name, "--json", "--output", str(path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["name"] == name
    assert result["claims"]
    for claimed in result["claims"]:
        assert claimed["verdict"] in ("holds", "does not hold", "cannot be told")
        assert claimed["why"].endswith(".")
    text = "\n".join(as_text(entry))
    assert max(map(len, text.splitlines())) <= 120
    for table in result["tables"]:
        assert table["title"] in " ".join(text.split())
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    html = path.read_text()
    check_self_contained(html)
    check_charts(html)
    words = Page(html).words
    for claimed in result["claims"]:
        assert " ".join(claimed["claim"].split()) in words
        assert claimed["why"] in words
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
    _check_errata(entry, text)
    _check_committed(entry)


DOCS = Path(__file__).parents[1] / "docs"
ERRATA = [
    (re.findall(r"`randquant-papers reproduce ([\w-]+)` \|$", line), line)
    for line in (DOCS / "errata.md").read_text().splitlines()
    if "`randquant-papers reproduce" in line
]
SAID_ELSEWHERE = {"rqm-fig2", "rqm-fig7", "rqm-fig8", "qmgeo-fig3"}
"""Reproductions whose errata are rows with a `certify` command."""


def _check_errata(entry, text):
    """Each figure of a row with four decimals or more, and every long one, is printed as it is."""
    rows = [row for names, row in ERRATA if names == [entry.name]]
    if any(claimed.verdict == "does not hold" for claimed in entry.claims):
        assert rows or entry.name in SAID_ELSEWHERE
    for row in rows:
        _, holds, _ = row.strip("| ").split(" | ")
        figures = re.findall(r"(?<![\w.])\d+\.\d{4,}|(?<![\w.])\d{5,}(?:\.\d+)?", holds)
        assert figures
        for figure in figures:
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d])", text), figure


def _check_committed(found):
    """The gallery says what is found today."""
    kept = gallery.load(DOCS / "gallery" / "results" / f"{found.name}.json")
    said = [[(c.text, c.paper, c.verdict) for c in result.claims] for result in (kept, found)]
    assert said[0] == said[1]
    assert kept.setting == found.setting
    assert len(kept.figures) == len(found.figures)
    assert [t.title for t in kept.tables] == [t.title for t in found.tables]


def test_every_erratum_of_a_reproduction_is_of_one_that_is_there():
    assert len(ERRATA) > 8
    assert all(len(names) == 1 and names[0] in ENTRIES for names, _ in ERRATA)


@functools.cache
def rqm_rows(*inputs: float) -> list[list[Fraction]]:
    return [oracle.rqm_row(Fraction(x), Fraction(3), 16, PAPER_KEEP) for x in inputs]


def divergence(p: list[Fraction], q: list[Fraction], order: float) -> mpmath.mpf:
    """Rényi divergence of rows of fractions, brought to a common denominator."""
    scale = math.lcm(*(f.denominator for f in [*p, *q]))
    return oracle.renyi([int(f * scale) for f in p], [int(f * scale) for f in q], order)


def binomials(trials: int, theta: float, order: float) -> float:
    """Divergence of PBM's rows at the ends: of one trial, times their number."""
    one = [Fraction(1, 2) + Fraction(theta), Fraction(1, 2) - Fraction(theta)]
    return trials * float(divergence(one, one[::-1], order))


@pytest.mark.slow
def test_rqms_figure_8_against_the_enumeration_of_all_subsets():
    low, level, high = rqm_rows(-1.5, float(rq.rqm(1.5, 1.5, 16, 0.42).inputs[-2]), 1.5)
    result = reproduced("rqm-fig8")
    ends, beside = claim(result, "at (clip, -clip)"), claim(result, "level beside")
    assert upper(ends.ours) == pytest.approx(float(divergence(high, low, 1000)), abs=1e-9)
    assert upper(beside.ours) == pytest.approx(float(divergence(level, low, 1000)), abs=1e-9)
    assert (ends.paper, beside.paper) == ("5.46838", "5.46190")
    assert agrees("5.46190", float(divergence(level, low, 1000)))
    assert (ends.verdict, beside.verdict) == ("holds", "holds")
    assert claim(result, "in general").verdict == "does not hold"


def test_rqms_figure_2_against_closed_forms():
    result = reproduced("rqm-fig2")
    for (theta, _, _), table in zip(rqm.PANELS, result.tables, strict=True):
        for row in table.rows:
            order, pbm = row[0], upper(row[-1])
            # The least weights are some 2**22 units of 2**-62.
            assert pbm == pytest.approx(binomials(15, theta, order), rel=1e-8, abs=0)
    verdicts = [c.verdict for c in result.claims]
    assert verdicts == ["holds", "holds", "holds", "does not hold", "holds", "holds"]
    low, high = rqm_rows(-1.5, 1.5)
    at_ends = next(row[2] for row in result.tables[1].rows if row[0] == 8.0)
    assert upper(at_ends) == pytest.approx(float(divergence(high, low, 8)), abs=1e-9)


def test_rqms_figure_3_against_enumeration():
    table = reproduced("rqm-fig3").tables[0]  # 4 levels
    grid = np.linspace(-1.5, 1.5, 30)
    for _, keep, error, theta, other, ratio in table.rows[3::4]:
        levels = [Fraction(2 * i - 3) for i in range(4)]
        mine = theirs = Fraction(0)
        for x in map(Fraction, grid):
            row = oracle.rqm_row(x, Fraction(3), 4, Fraction(keep))
            mine += sum(w * (a - x) ** 2 for w, a in zip(row, levels, strict=True))
            success = Fraction(1, 2) + Fraction(theta) * x / Fraction(3, 2)
            codes = oracle.binomial_row(3, success)
            scale = Fraction(3, 2) / (3 * Fraction(theta))
            theirs += sum(w * ((k - Fraction(3, 2)) * scale - x) ** 2 for k, w in enumerate(codes))
        assert error == pytest.approx(float(mine / 30), rel=1e-9, abs=0)
        assert other == pytest.approx(float(theirs / 30), rel=1e-9, abs=0)
        assert ratio == other / error > 1
    epsilon, _, _, theta, _, _ = table.rows[5]
    assert upper(epsilon) == pytest.approx(binomials(3, theta, 1.5), rel=1e-12, abs=0)
    assert {c.verdict for c in reproduced("rqm-fig3").claims} == {"holds"}


def test_rqms_figures_9_and_10_against_roots_in_many_digits():
    low, high = (
        oracle.rqm_row(Fraction(x), Fraction(1.5 + 2.33 * 1.5), 16, PAPER_KEEP) for x in ENDS
    )
    for order, ours, theirs in reproduced("rqm-fig9").tables[0].rows:
        assert upper(theirs) == pytest.approx(binomials(15, 0.15, order), rel=1e-9, abs=0)
        ends = max(divergence(high, low, order), divergence(low, high, order))
        assert upper(ours) >= float(ends) * (1 - 1e-9)  # some other pair may be worse
        assert ours.upper - ours.lower <= 1e-12 * ours.upper
    competitive, moderate = reproduced("rqm-fig9").claims
    assert "0.25 to 0.75" in competitive.why
    assert moderate.verdict == "holds"
    assert {c.verdict for c in reproduced("rqm-fig10").claims} == {"does not hold"}
    for table, trials in zip(reproduced("rqm-fig10").tables, (3, 15, 63), strict=True):
        epsilon, _, _, theta, _, _ = table.rows[5]
        # Bernoulli rows at +-clip have the coefficient 2 sqrt(p (1 - p)); trials multiply.
        assert upper(epsilon) == pytest.approx(-trials * math.log(1 - 4 * theta**2), rel=1e-9)


def test_a_divergence_below_order_one_is_within_its_interval():
    rng = np.random.default_rng(5)
    for _ in range(50):
        p, q = (rng.multinomial(2**20, rng.dirichlet(np.full(5, 0.3))).tolist() for _ in range(2))
        order = Fraction(int(rng.integers(1, 8)), 8)
        found = trade_offs.below_one(p, q, 2**20, order)
        with mpmath.workdps(50):
            a, total = mpmath.mpf(order.numerator) / order.denominator, mpmath.mpf(2**20)
            terms = ((x / total) ** a * (y / total) ** (1 - a) for x, y in zip(p, q, strict=True))
            exact = mpmath.log(mpmath.fsum(terms)) / (a - 1)
            assert found.lower <= exact <= found.upper <= found.lower + 1e-12
    assert trade_offs.below_one([4, 0], [0, 4], 4, Fraction(1, 2)) == Interval(math.inf, math.inf)
    assert trade_offs.below_one([3, 1], [3, 1], 4, Fraction(1, 2)).lower == 0


def test_rqms_figure_7_peaks_where_its_table_does():
    result = reproduced("rqm-fig7")
    for order, table in zip((2, 1000), result.tables, strict=True):
        cells = np.array([row[1:] for row in table.rows])
        assert cells.max() == cells[0, -1] == cells[-1, 0]
        assert (np.diag(cells) == 0).all()
        low, high = rqm_rows(-1.5, 1.5)
        assert cells.max() == pytest.approx(float(divergence(high, low, order)), abs=1e-9)


def test_a_sum_of_codes_against_brute_force():
    channel = rq.rqm(1.0, 0.7, 4, 0.6)
    rows = [[int(w) for w in row] for row in channel.weights]
    worst = mpmath.mpf(0)
    for a, b, c, d in itertools.product(range(len(rows)), repeat=4):
        p, q = [0] * 10, [0] * 10
        for i, j, k in itertools.product(range(4), repeat=3):
            p[i + j + k] += rows[a][i] * rows[c][j] * rows[d][k]
            q[i + j + k] += rows[b][i] * rows[c][j] * rows[d][k]
        worst = max(worst, oracle.renyi(p, q, 1.5))
    interval, _ = rqm.worst_sum(channel, 3, 1.5)
    assert interval.lower <= worst <= interval.upper
    assert interval.width < 1e-12


@pytest.mark.parametrize(
    ("ratio", "keep", "clients", "order"), [(1.0, 0.42, 2, 1.5), (1.0, 0.65, 4, 1.1)]
)
def test_inputs_at_the_ends_are_not_always_the_worst_of_a_sum(ratio, keep, clients, order):
    channel = rq.rqm(1.5, ratio * 1.5, 16, keep)
    anywhere, witness = rqm.worst_sum(channel, clients, order)
    ends, _ = rqm.worst_sum(channel, clients, order, ends_only=True)
    assert anywhere.lower > ends.upper * 1.0005
    assert any(abs(x) < 1.5 for x in witness[2:])


def middle_rows(levels: int, p: Fraction) -> tuple[list[Fraction], list[Fraction]]:
    """QMGeo's rows at the mid-points of the end cells, from its definition."""
    masses = [p * (1 - p) ** k for k in range(levels - 1)]
    row = [Fraction(1, 2), *(mass / sum(masses) / 2 for mass in masses)]
    return row, row[::-1]


@pytest.mark.parametrize(("levels", "p"), [(8, Fraction(1, 2)), (16, Fraction(9, 10))])
@pytest.mark.parametrize("order", [1.1, 2.0, 8.0])
def test_qmgeos_equation_24_is_not_the_divergence_of_its_rows(levels, p, order):
    exact = float(divergence(*middle_rows(levels, p), order))
    channel = qmgeo_paper._at_middles(levels, float(p), order)
    # The least weight is 10**-14 for 16 levels: 2**16 units of the channel's 2**-62.
    assert channel.upper == pytest.approx(exact, rel=1e-6 if levels == 16 else 1e-9)
    assert abs(qmgeo_paper.equation_24(levels, float(p), order) - exact) > 0.4
    whole = [p * (1 - p) ** k for k in range(levels)]
    truncated = [mass / sum(whole) for mass in whole]
    pair = qmgeo_paper.geometric_pair(levels, p, order)
    assert pair.lower <= divergence(truncated, truncated[::-1], order) <= pair.upper


def test_qmgeos_printed_epsilons_come_from_equation_26():
    for levels, p, printed in qmgeo_paper.PRINTED:
        formula = qmgeo_paper.equation_24(levels, float(p), 2.0)
        assert agrees(printed, 0.005333**2 * 3562 * formula)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_a_sampled_example_against_the_whole_joint_distribution(dimension):
    p, q = middle_rows(8, Fraction(1, 2))
    rate = Fraction(5333, 10**6)
    moment = Fraction(0)
    for codes in itertools.product(range(8), repeat=dimension):
        present = math.prod((p[i] for i in codes), start=Fraction(1))
        absent = math.prod((q[i] for i in codes), start=Fraction(1))
        moment += ((1 - rate) * absent + rate * present) ** 2 / absent
    exact = math.log(moment)
    single = float(divergence(p, q, 2.0))
    assert qmgeo_paper.sampled(single, dimension, float(rate)) == pytest.approx(
        exact, rel=1e-9, abs=0
    )
    assert exact > 10 * float(rate) ** 2 * dimension * single  # equation 26


def two_bin_error(cell: optm_paper.Cell, x: float) -> float:
    """E|M(x) - x| of a cell, straight from the definition of its mechanism."""
    settings = cell.parameters
    if cell.mechanism == "rqm":
        reach = Fraction(1 + settings["margin"])
        row = oracle.rqm_row(Fraction(x), reach, 4, Fraction(settings["keep"]))
        values = [reach * (2 * i - 3) / 3 for i in range(4)]
        return float(sum(w * abs(v - Fraction(x)) for w, v in zip(row, values, strict=True)))
    if cell.mechanism != "erm":  # designed: the mix of the channel's own rows, one input at a time
        channel = cell.channel()
        weights, total = channel.mix(x)
        return float(weights @ np.abs(channel.values - x) / total)
    bins, gamma = settings["bins"], settings["gamma"]
    below, above = [b for b in bins if b <= x], [b for b in bins if b > x]

    def shares(side: list[float], near: float, far: float) -> list[float]:
        weights = [math.exp(-gamma * abs(b - near) / (2 * abs(far - near) or 1)) for b in side]
        return [w / sum(weights) for w in weights]

    total = 0.0
    left, right = shares(below, below[-1], bins[0]), shares(above, above[0], bins[-1])
    for a, s in zip(below, left, strict=True):
        for b, t in zip(above, right, strict=True):
            total += s * t * 2 * (x - a) * (b - x) / (b - a)
    return total


@pytest.mark.parametrize("cell", [*optm_paper.TABLE_1, *optm_paper.IMPOSSIBLE], ids=str)
def test_optms_table_1_against_quadrature(cell):
    bins = [float(b) for b in cell.channel().values if abs(b) < 1]
    exact, _ = integrate.quad(lambda x: two_bin_error(cell, x) / 2, -1, 1, points=bins or None)
    row = next(r for r in reproduced("optm-table1").tables[0].rows if r[3] == cell.error and (
        r[0] == optm_paper._named(cell)))  # fmt: skip
    # The encoder rounds inputs to 2**-32 of a cell, and quadrature meets the kinks of 32 cells.
    assert row[4] == pytest.approx(exact, rel=1e-7 if cell.mechanism in ("rqm", "erm") else 1e-5)
    assert upper(row[2]) <= cell.epsilon


@pytest.mark.parametrize("deviation", [0.1, 0.3])
def test_a_gaussian_average_against_quadrature(deviation):
    channel = rq.erm(1.0, [-5.1, -0.1, 0.1, 5.1], 0.026)
    error = rq.moments(channel).mae_at

    def density(x: float) -> float:
        return math.exp(-(((x - 0.5) / deviation) ** 2) / 2)

    edges = [-0.1, 0.1, 0.5]
    top, _ = integrate.quad(lambda x: float(error(x)) * density(x), -1, 1, points=edges)
    bottom, _ = integrate.quad(density, -1, 1, points=edges)
    got = optm_paper.average(channel, error, 0.5, deviation)
    assert got == pytest.approx(top / bottom, rel=1e-9, abs=0)
