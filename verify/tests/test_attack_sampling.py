"""Attacks: files made to mislead, worlds looked for at random, and what a fault would let pass."""

import json
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
    far = sampling.Laws(SimpleNamespace(pure=interval(10**12), divergence=lambda k, _: 10**12))
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
