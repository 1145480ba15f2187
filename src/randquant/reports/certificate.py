"""A certificate as picture, facts and page."""

from __future__ import annotations

from randquant._internal.formatting import bound, minus
from randquant.privacy.certificates.coordinate import Certificate
from randquant.reports import guarantee_text, pages
from randquant.reports.channel import codes_sent
from randquant.reports.figures import Figure
from randquant.reports.notebook import Facts
from randquant.reports.pages import DataTable, Section


def figures(certificate: Certificate) -> list[Figure]:
    """Draw the distributions of the code at both inputs of the worst pair, side by side.

    Raises:
        ValueError: the certificate has no channel.
    """
    channel = certificate.channel
    if channel is None:
        raise ValueError(
            "Expected a certificate with its channel, got channel=None: make it by certify."
        )
    inputs = {
        f"{name} = {minus(f'{x:g}')}": x
        for name, x in zip(("x", "x'"), certificate.witness, strict=True)
    }
    return [codes_sent(_title(certificate), channel, inputs)]


def _title(certificate: Certificate) -> str:
    # A figure for a chosen pair is no certificate of the channel: the title says which one it is.
    pair = "This pair" if certificate.covers == "this pair" else "Worst pair"
    title = f"{pair} of inputs at order {certificate.order:g}: {bound(certificate.epsilon.upper)}"
    return title.replace("inf:", "∞:")


def facts(certificate: Certificate) -> Facts:
    """Return a certificate as a short table; its epsilon is never printed below its value."""
    x, other = (minus(f"{end:g}") for end in certificate.witness)
    rows = [
        ("order", f"{certificate.order:g}".replace("inf", "∞")),
        ("epsilon, nats", bound(certificate.epsilon.upper)),
        ("worst pair", f"x = {x}, x' = {other}"),
        ("code of the largest ratio", str(certificate.code)),
        ("covers", certificate.covers),
        ("neighbours", certificate.neighboring.replace("_", " ")),
    ]
    return "Certificate of one coordinate and release", ("fact", "value"), rows


def page(certificate: Certificate) -> str:
    """Write a certificate as the text of one HTML page."""
    table = DataTable(*facts(certificate), "settings")
    lead = "For one coordinate and one release; for a whole run see an account."
    sections = [Section("", [*figures(certificate), table]), guarantee_text.coverage_of_codes()]
    return pages.report("randquant certify", "A certificate", _title(certificate), lead, sections)
