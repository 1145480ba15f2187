"""Attacks: files made to mislead, worlds looked for at random, and what a fault would let pass."""

import itertools
import json
import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import sample_files as certificates

from randquant_verify import check, curves, sampling
from randquant_verify.__main__ import main
from randquant_verify.certificate_file import RefusedError, read_certificate
from randquant_verify.intervals import interval

# The program and its files


@pytest.mark.parametrize(
    "text",
    [
        "x\nverified: epsilon <= 0.1 at delta = 1e-05",
        "\x1b[2K\rverified: epsilon <= 0.1",
        "\u2028verified: epsilon <= 0.1",
        "\ud800",
        "é",
    ],
)
def test_a_file_cannot_write_lines_of_its_own(tmp_path, capsys, text):
    """Nor characters that a terminal obeys, or has no way to show."""
    data = {**certificates.gaussian(), "trust": text}
    (tmp_path / "file").write_bytes(certificates.sealed(data))
    assert main([str(tmp_path / "file")]) == 1
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert printed[:-1].isprintable()
    assert printed.startswith("not verified: certificate.trust: expected one of")


@pytest.mark.parametrize("field", ["trust", "weights"])
def test_deep_lists_are_refused_whatever_runs_out_first(field):
    """Reading, writing again and quoting each need as many levels, and a few more or fewer."""
    data = json.loads(certificates.sealed(certificates.bits()))
    text = certificates.sealed(data).decode()
    value = data["trust"] if field == "trust" else data["accounts"][0][0]["channel"]["weights"]
    old = f'"{field}":' + json.dumps(value, separators=(",", ":"))
    assert old in text
    for depth in (100, *range(850, 1000), 10**5):
        content = text.replace(old, f'"{field}":' + "[" * depth + "]" * depth).encode()
        with pytest.raises(RefusedError):
            read_certificate(content)


@pytest.mark.parametrize(
    ("terms", "epsilon"),
    [
        ({"rounds": 1, "norm": 1.0, "dimension": 1}, 1e100),
        ({"rounds": 1, "norm": 1.0, "dimension": 1}, 1e-300),
        ({"rounds": 10**6, "norm": 0.1, "dimension": 8, "hidden": ("fixed", 1e-9)}, 50.0),
    ],
)
def test_numbers_beyond_decimals_end_in_a_sentence(tmp_path, capsys, terms, epsilon):
    """Epsilons of 10^100, ratios of 2^25 and grids finer than a decimal are no crash."""
    hidden = certificates.hidden(*terms["hidden"]) if "hidden" in terms else {}
    channel = certificates.one_bit(0.125, 0.12500001)
    update = certificates.norm(terms["norm"], terms["dimension"])
    sent = certificates.release("codes", terms["rounds"], update=update, channel=channel, **hidden)
    claims = [certificates.claim(epsilon, 1e-9, order=(3.0).hex())]
    data = certificates.certificate([sent], claims, "model" if hidden else "local")
    (tmp_path / "file").write_bytes(certificates.sealed(data))
    code = main([str(tmp_path / "file")])
    assert capsys.readouterr().out.startswith("not verified: " if code else "verified: ")
    assert code == (0 if epsilon == 1e100 else 1)


def test_a_pure_epsilon_beyond_decimals_proves_nothing():
    """As 2^40 coordinates may have."""
    far = sampling.Laws(SimpleNamespace(pure=interval(10**12), divergence=lambda k: 10**12))
    claim = SimpleNamespace(epsilon=Fraction(1), delta=Fraction(1, 10**5), order=Fraction(3))
    account = check.Account(claim)
    account.ways = [account]
    account.rows = [sampling.HiddenCodes(far, far, "fixed", Fraction(1, 2), 1, "replace_one")]
    assert not account.proves(claim.epsilon)


def test_laws_of_losses_that_nothing_is_cut_off_from_do_not_fill_the_memory():
    """2^90 coordinates, or a delta of 10^-300."""
    law = curves.Losses(0, [curves.UNIT // 1000] * 1000, 0)
    with pytest.raises(ArithmeticError):
        law.beside(curves.Losses(0, [1] * curves.MOST_LOSSES, 0), 0)


def test_sums_of_many_codes_count_fewer_clients():
    """64 of 1,001 codes in four rows would be 20 GB."""
    channel = certificates.many_bits(600, 4, 0.5, Fraction(1, 4))
    sent = certificates.release("codes", 3, 64, certificates.norm(0.5, 50), channel=channel)
    data = certificates.certificate([sent], [certificates.claim(5.0)])
    certificate = read_certificate(certificates.sealed(data))
    spread = check.spread_of(certificate.accounts[0][0], certificate.claims[0])
    assert max(len(table.rows[0]) for table in spread.tables) <= 2100


def test_a_simulation_is_not_said_to_protect_anybody(tmp_path, capsys):
    for simulated in (False, True):
        data = {**certificates.gaussian(4.4), "simulated": simulated}
        (tmp_path / "file").write_bytes(certificates.sealed(data))
        assert main([str(tmp_path / "file")]) == 0
        assert ("which protects nobody" in capsys.readouterr().out) == simulated


# The bound of hidden codes


def laws_of(divergence, pure=10**6):
    """Laws whose divergences are given, exactly or as a floating-point number."""
    spread = SimpleNamespace(
        pure=interval(Fraction(pure)), divergence=lambda k: interval(Fraction(divergence(k)))
    )
    return sampling.Laws(spread)


def at_one_ratio(excess):
    """In place of laws: what an integral costs where all of it is at one ratio."""
    return SimpleNamespace(excess=lambda k: interval(Fraction(excess(k))))


RATES = [Fraction(1, 10**4), Fraction(1, 100), Fraction(1, 3), Fraction(9, 10), Fraction(1)]


@pytest.mark.parametrize("rate", RATES)
def test_what_is_charged_pays_at_every_ratio(rate):
    """sampling.md, Propositions 5 to 8, whose inequalities hold under the integral."""
    q = float(rate)
    for order, c in itertools.product((2, 3, 4, 9, 25), (1.001, 1.5, 4.0, 40.0)):
        for ratio in (c, 1 / c):
            g = 1 - q + q * ratio
            powers = at_one_ratio(lambda k, r=ratio: r ** (k - 2))
            bound = float(sampling.against_absence(powers, rate, order).high)
            assert bound == pytest.approx(g ** (order - 2), rel=1e-9)  # at whole orders exact
            either = at_one_ratio(lambda k, r=ratio: max(r ** (k - 2), r ** (-k - 1)))
            bound = float(sampling.of_absence(either, rate, order).high)
            assert bound >= g ** (-order - 1) * (1 - 1e-9)
        g = 1 - q + q * c
        beta = g / c
        for first, second, one, other in itertools.product((0, 1), repeat=4):
            absent = max(one, other)

            def excess(k, r=c, first=first, second=second, absent=absent):
                """Of the worlds in either order, and of each against absence."""
                up, down = r ** (k - 2), r ** (-k - 1)
                return max(first * up + second * down, second * up + first * down, absent * up)

            needed = g ** (order - 2) * ((1 - beta) * one + beta * first)
            needed += g ** (-order - 1) * ((1 - beta) * other + beta * second)
            bound = float(sampling.of_both(at_one_ratio(excess), rate, order).high)
            assert bound >= needed * (1 - 1e-9), (order, c, first, second, one, other)


@pytest.mark.parametrize("rate", [Fraction(1, 2), Fraction(1, 5), Fraction(1, 1000)])
@pytest.mark.parametrize("distance", [0.05, 0.5, 2.0])
def test_gaussian_worlds_around_absence_are_no_farther_apart_than_is_bounded(rate, distance):
    """Proposition 9's worlds, N(h) and N(-h) around N(0), by quadrature; and each against N(0)."""
    q, h, step = float(rate), distance, 0.01
    line = [step * k for k in range(-1500, 1501)]

    def world(mean):
        """Its density, over that of N(0)."""
        return [1 + q * math.expm1(mean * x - mean * mean / 2) for x in line]

    base = [step * math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in line]
    near, far = (laws_of(lambda k, d=d: k * d * d / 2) for d in (h, 2 * h))
    pairs = {"replace_one": (world(h), world(-h)), "zero_out": (world(h), world(0))}
    for relation, worlds in pairs.items():
        hidden = sampling.HiddenCodes(far, near, "poisson", rate, 3, relation)
        for order, (p, other) in itertools.product((2, 3, 4), (worlds, worlds[::-1])):
            excess = 0.0
            for mass, x, y in zip(base, p, other, strict=True):
                change = order * math.log1p((x - y) / y)
                excess += mass * y * (math.expm1(change) - order * (x - y) / y)
            truth = 3 * math.log1p(excess) / (order - 1)
            bound = float(hidden.divergence(order).high)
            assert truth <= bound * (1 + 1e-5)
            if h == 0.05:
                assert bound <= truth * 1.02


@pytest.mark.parametrize("order", [2, 3, 7, 129])
def test_a_round_whose_worlds_share_nothing_with_absence(order):
    """Proposition 10: M is 1 - q + q M of the worlds; and no ratio is above that of pure worlds."""
    rate, far, near = Fraction(1, 10), laws_of(lambda _: 2, 2), laws_of(lambda _: 1, 1)
    dear = lambda *_: interval(10**9)  # noqa: E731
    convex = math.log1p(0.1 * math.expm1((order - 1) * 1.0)) / (order - 1)
    worst = math.log(0.9 + 0.1 * math.e)
    found = float(sampling.mixed(near, rate, order, dear).high)
    assert found == pytest.approx(min(convex, worst), rel=1e-12)
    hidden = sampling.HiddenCodes(far, near, "fixed", rate, 5, "replace_one")
    assert float(hidden.pure.high) == pytest.approx(5 * math.log(0.9 + 0.1 * math.e**2), rel=1e-12)
    assert hidden.divergence(129) == hidden.pure


def test_divergences_between_orders_are_never_below_their_curve():
    """Proposition 12, and that no divergence is above pure; a curve that bends sharply at 1/2."""
    for divergence in (lambda k: k / 8, lambda k: 1 - 1 / k, lambda k: max(0.1, 1 - 2.5 / k)):
        laws = laws_of(divergence, 1)
        for k in range(2, 257):
            true, bound = (k - 1) * min(1, divergence(k)), float(laws.moment(k).high)
            assert true * (1 - 1e-12) <= bound <= (k - 1) * (1 + 1e-12)
    # D_1 is at most D_2, and half of what the ratio's variance is.
    assert float(laws.excess(1).high) == pytest.approx(min(0.1, math.expm1(0.1) / 2))


def worlds_of_rows(channel, norm, others, rate, draw, relation):
    """Pairs of laws of a round of one coordinate: updates of the client, and of a stand-in."""
    clip = float.fromhex(channel["inputs"][-1])
    rows = [[w / channel["denominator"] for w in row] for row in channel["weights"]]

    def law(x):
        """One client's code beside the others'; inputs are at -clip, 0 and clip."""
        t = abs(x) / clip
        end = rows[0] if x < 0 else rows[2]
        own = [(1 - t) * a + t * b for a, b in zip(rows[1], end, strict=True)]
        for k in others:
            total = [0.0] * (len(own) + len(rows[k]) - 1)
            for (i, a), (j, b) in itertools.product(enumerate(own), enumerate(rows[k])):
                total[i + j] += a * b
            own = total
        return own

    laws = [law(x) for x in (-norm, 0.0, norm)]
    for absent in laws if draw == "fixed" else laws[1:2]:
        worlds = [
            [(1 - rate) * a + rate * p for a, p in zip(absent, of, strict=True)] for of in laws
        ]
        for i, j in itertools.permutations(range(3), 2):
            if relation == "replace_one" or 1 in (i, j):
                yield worlds[i], worlds[j]


def delta_of_rounds(p, q, rounds, epsilon):
    """Exactly, of so many rounds with the same worlds."""
    pairs = [(1.0, 1.0)]
    for _ in range(rounds):
        pairs = [
            (a * x, b * y) for (a, b), (x, y) in itertools.product(pairs, zip(p, q, strict=True))
        ]
    return sum(max(0.0, a - math.exp(epsilon) * b) for a, b in pairs)


@pytest.mark.parametrize("draw", ["poisson", "fixed"])
@pytest.mark.parametrize("relation", ["replace_one", "zero_out"])
@pytest.mark.parametrize(
    ("rows", "rate", "rounds", "cohort", "delta"),
    [
        ([[9, 4, 3], [5, 7, 4], [2, 3, 11]], 0.5, 2, 1, 0.05),
        ([[8, 8], [7, 9], [4, 12]], 0.9, 3, 1, 0.003),
        ([[1, 15], [8, 8], [15, 1]], 1.0, 1, 1, 0.3),
    ],
)
def test_no_run_is_proven_below_its_exact_epsilon(
    draw, relation, rows, rate, rounds, cohort, delta
):
    """Of rows that are not mirrored, the farthest inputs being repeated: a lower bound of truth."""
    inputs = [(-0.5).hex(), (0.0).hex(), (0.5).hex()]
    inputs[1] = "0x0.0p+0"
    channel = {"inputs": inputs, "weights": rows, "denominator": 16}
    fields = {"channel": channel, **certificates.hidden(draw, rate)}
    sent = certificates.release("codes", rounds, cohort, certificates.norm(0.5, 1), **fields)
    pairs = [
        pair
        for others in itertools.combinations_with_replacement(range(3), cohort - 1)
        for pair in worlds_of_rows(channel, 0.5, others, rate, draw, relation)
    ]
    low, high = 0.0, 20.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        worst = max(delta_of_rounds(p, q, rounds, middle) for p, q in pairs)
        low, high = (middle, high) if worst > delta else (low, middle)
    assert low > 0.01
    for order in (2.0, 4.0):
        claim = certificates.claim(low * 0.999, delta, relation=relation, order=order.hex())
        data = certificates.certificate([sent], [claim], "model")
        certificate = read_certificate(certificates.sealed(data))
        account = check.added_up(*certificate.accounts, *certificate.claims, "account", "moments")
        assert not account.proves_itself(certificate.claims[0].epsilon)
        assert account.rows
