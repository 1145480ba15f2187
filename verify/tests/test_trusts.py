"""Whose noise counts under each trust, and who must not see cohorts that are hidden."""

import pytest
import sample_files as certificates

from randquant_verify.certificate_file import RefusedError, read_certificate

BOTH = ("helper", "server")


@pytest.mark.parametrize("make", [certificates.hidden_bits, certificates.hidden_gaussian])
@pytest.mark.parametrize("trust", ["local", "aggregate", "central", "model"])
def test_cohorts_of_a_fixed_size_are_hidden_from_nobody_who_sees_their_sums(make, trust):
    """Who knows all other members knows if a client is one: sampling.md, Proposition 1."""
    known = "central" if make == certificates.hidden_gaussian else "aggregate"
    for draw in ("poisson", "fixed"):
        data = {**make(1, draw=draw), "trust": trust}
        if trust in ("local", "central"):  # nobody else's noise counts there
            data["accounts"][0][0]["cohort"], data["honest_others"] = 1, 0
        text = certificates.sealed(data)
        if trust == "model" or (trust == known and (draw == "poisson" or known == "central")):
            read_certificate(text)
        elif draw == "fixed":
            with pytest.raises(RefusedError):
                read_certificate(text)


@pytest.mark.parametrize("make", [certificates.hidden_bits, certificates.hidden_party])
def test_only_hidden_cohorts_are_certified_against_those_who_see_models(make):
    data = make(1)
    read_certificate(certificates.sealed(data))
    del data["accounts"][0][0]["hidden"]
    with pytest.raises(RefusedError, match=r"^hidden: expected a draw under model trust"):
        read_certificate(certificates.sealed(data))


@pytest.mark.parametrize("trust", ["local", "aggregate", "central", "model"])
def test_the_noise_of_others_counts_in_sums_of_their_own_alone(trust):
    """Where a server sees each client's codes, nobody else hides them."""
    parties = {"law": "discrete-gaussian", "variance": 1e6, "parties": BOTH}
    tables = certificates.table(5.0, scale=300.0), certificates.table(5.0, **parties)
    others = certificates.bits(), certificates.skellam(), certificates.gaussian()
    for made in (*tables, *others, certificates.party(), certificates.hidden_bits(1)):
        data = {**made, "trust": trust}
        (sent,) = data["accounts"][0]
        sent["cohort"], data["honest_others"] = 2, 1
        by_one = sent["kind"] in ("gaussian noise", "party noise", "party table")
        if by_one or trust in ("local", "central"):
            with pytest.raises(RefusedError, match=r"^cohort: expected 1 of"):
                read_certificate(certificates.sealed(data))
        elif trust == ("model" if sent.get("hidden") else "aggregate"):
            read_certificate(certificates.sealed(data))
