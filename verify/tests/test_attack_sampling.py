"""Attacks: files made to mislead, worlds looked for at random, and what a fault would let pass."""

import json

import pytest
import sample_files as certificates

from randquant_verify.__main__ import main
from randquant_verify.certificate_file import RefusedError, read_certificate

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
