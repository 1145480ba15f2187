"""Check what a certificate file claims: `randquant-verify FILE`.

Exit code 0: every claim is proven. 1: some step fails. 2: this program's bounds prove a larger
epsilon than is claimed, and no smaller one.
"""

from __future__ import annotations

import sys
from fractions import Fraction

from .certificate_file import RefusedError, read_certificate
from .check import compile_account, smallest_epsilon

ASSUMED = (
    "not checked: that clients do as the file states with secret random bits, that others are\n"
    "honest where it counts on them, and that all was declared before the first round"
)
SIMULATED = "secret keys in place of the seed of this simulation, which protects nobody"


def text_of(epsilon: Fraction) -> str:
    """Six digits, rounded up."""
    digits = 0 if epsilon >= 10**6 else 6 - len(str(int(epsilon)))
    scaled = -(-epsilon.numerator * 10**digits // epsilon.denominator)
    return f"{scaled / 10**digits:.{digits}f}".rstrip("0").rstrip(".") if digits else str(scaled)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: randquant-verify FILE", file=sys.stderr)
        return 1
    try:
        with open(arguments[0], "rb") as file:
            certificate = read_certificate(file.read(2**20 + 1))
    except (OSError, RefusedError) as error:
        print(f"not verified: {error}")
        return 1
    codes = []
    for claim in certificate.claims:
        try:
            codes.append(check(certificate, claim))
        except RefusedError as error:  # the other claims may hold
            print(f"not verified: {error}")
            codes.append(1)
    if set(codes) != {1}:
        print(ASSUMED)
    return 1 if 1 in codes else max(codes)


def check(certificate, claim) -> int:
    """Print what is proven of one claim."""
    proven, counts_on = Fraction(0), {SIMULATED} if certificate.simulated else set()
    for k, releases in enumerate(certificate.accounts):
        account = compile_account(releases, claim, f"accounts[{k}]")
        found = smallest_epsilon(account, claim)
        if found is None:
            raise RefusedError(
                f"accounts[{k}]: no epsilon up to {text_of(claim.epsilon * 3 / 2)} is proven "
                f"at delta = {float(claim.delta):g} ({claim.relation} {claim.unit})"
            )
        proven, counts_on = max(proven, found), counts_on | account.counts_on
    terms = f"at delta = {float(claim.delta):g} ({claim.relation} {claim.unit}, "
    terms += f"{certificate.trust} trust, {certificate.honest_others} honest others)"
    terms += "".join(f"\n  counts on {assumption}" for assumption in sorted(counts_on))
    if proven == claim.epsilon:
        print(f"verified: epsilon <= {text_of(proven)} {terms}")
        return 0
    print(f"verified, but not as claimed: epsilon <= {text_of(proven)}, ", end="")
    print(f"where {text_of(claim.epsilon)} is claimed, {terms}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
