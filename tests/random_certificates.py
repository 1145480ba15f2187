"""Random certificates of every mechanism, for the verifier to check.

`python tests/random_certificates.py FIRST LAST` prints what the verifier says of those seeds.
"""

import contextlib
import io
import math
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import randquant as rq
from randquant.aggregation import (
    AdditiveMechanism,
    AuxiliaryNumbers,
    HelperNoise,
    LocalGaussian,
    Number,
    SignSGD,
    gaussian,
)
from randquant.mechanisms import NOISES
from randquant.privacy import NEIGHBORINGS, Guarantee, HiddenCohorts
from randquant.rounds import Offer, ReleaseTerms, RoundEvent, RunAccountant, Statement

# Not a dependency: where it is not installed, that of this repository.
sys.path.append(str(Path(__file__).parents[1] / "verify" / "src"))

from randquant_verify.__main__ import main as verify
from randquant_verify.certificate_file import read_certificate
from randquant_verify.check import compile_account

REFUSALS = (
    "nothing is protected",
    "no Gaussian noise that hides as little is known",
    "at most 4096 weights",
    "Expected bits > ",  # they do not hold the noise
    "noise to have a variance <= ",
    "Expected a target that can be met",
)
"""What a message of randquant has that refuses to state something, or to protect by it."""

LOOSENESS = {"bits": 1.02, "levels": 1.1, "noise": 1.02, "hidden": 1.1}
"""By kind, the largest epsilon that the verifier proves over the one claimed."""


class Drawn(NamedTuple):
    """What a seed draws: a kind of LOOSENESS, a description, and the text when it is asked for."""

    kind: str
    words: str
    text: Callable[[], str]


class Outcome(NamedTuple):
    """What came of a seed: `verified`, `looser`, `not verified` or `refused`."""

    word: str
    drawn: Drawn
    ratio: float
    seconds: float
    said: str

    @property
    def fine(self) -> bool:
        stated = self.word == "refused" and any(each in self.said for each in REFUSALS)
        within = self.word == "looser" and self.ratio <= LOOSENESS[self.drawn.kind]
        return self.word == "verified" or within or stated


def proven(text: str) -> bool:
    """Whether the verifier proves every claim of a certificate as it is claimed."""
    certificate = read_certificate(text.encode())
    return all(
        compile_account(account, claim, "account").proves(claim.epsilon)
        for claim in certificate.claims
        for account in certificate.accounts
    )


def outcome(seed: int, folder: Path) -> Outcome:
    """Draw a certificate, write it into the folder and have it checked."""
    drawn = draw(random.Random(seed))
    try:
        text = drawn.text()
    except ValueError as error:
        return Outcome("refused", drawn, math.nan, 0.0, str(error))
    path = folder / f"{seed}.json"
    path.write_text(text)
    printed, began = io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(printed):
        try:
            code = verify([str(path)])
        except Exception as error:  # a verifier must say no, whatever a file holds
            return Outcome("crashed", drawn, math.nan, time.process_time() - began, repr(error))
    said = printed.getvalue()
    pairs = re.findall(r"epsilon <= (\S+), where (\S+) is claimed", said)
    ratio = max((float(proven) / float(claimed) for proven, claimed in pairs), default=1.0)
    word = {0: "verified", 1: "not verified", 2: "looser"}[code]
    return Outcome(word, drawn, ratio, time.process_time() - began, said)


def draw(rng: random.Random) -> Drawn:
    """Draw what is certified: a mechanism, an account, a plan, a table, hidden rounds, a run."""
    kinds = [_mechanism, _mechanism, _hidden, _account, _table, _after, _plan]
    return rng.choice(kinds)(rng)


def _log(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _whole(rng: random.Random, low: int, high: int) -> int:
    return round(_log(rng, low, high))


def _delta(rng: random.Random) -> float:
    return rng.choice([1e-3, 1e-5, 1e-6, 1e-9])


class _Use(NamedTuple):
    """How one mechanism is used; `mu` is about the ratio of distance and noise of all rounds."""

    dimension: int
    rounds: int
    mu: float
    coordinates: int | None
    cohort: int

    @classmethod
    def drawn(cls, rng: random.Random) -> "_Use":
        dimension = _whole(rng, 1, 3000)
        rotated = 1 << (dimension - 1).bit_length()
        some = rng.choice([None, None, rng.randint(1, rotated)])
        rounds, cohort = rng.choice([1, _whole(rng, 1, 2000)]), _whole(rng, 1, 60)
        return cls(dimension, rounds, _log(rng, 0.05, 3), some, cohort)


def _bit(rng: random.Random, use: _Use, trust: Any, levels: int = 2) -> Any:
    rotated = 1 << (use.dimension - 1).bit_length()
    norm = _log(rng, 1e-3, 1e3)
    sent = norm * math.sqrt((use.coordinates or rotated) / rotated)
    cohort = use.cohort if trust == "aggregate" else 1
    reach = 2 * sent * math.sqrt(use.rounds / cohort) / use.mu
    clip = min(reach / rng.uniform(1.05, 20), norm)
    if levels == 2:
        channel = rq.stochastic_rounding(clip=clip, levels=2, margin=reach - clip)
    else:
        channel = rq.rqm(clip=clip, margin=reach - clip, levels=levels, keep=rng.uniform(0.2, 0.6))
    return rq.VectorMechanism(channel, norm, trust, cohort, coordinates=use.coordinates)


def _noise(rng: random.Random, use: _Use) -> Any:
    multiplier, norm = 2 * math.sqrt(use.rounds) / use.mu, _log(rng, 1e-3, 1e3)
    bits, some = rng.randint(10, 16), use.coordinates
    if rng.random() < 0.4:
        server = rng.random() < 0.5
        return HelperNoise(norm, multiplier, use.cohort, server, bits - 2, coordinates=some)
    kind = rng.choice(sorted(NOISES))
    return AdditiveMechanism(kind, norm, multiplier, use.cohort, bits, coordinates=some)


def _real(rng: random.Random, use: _Use) -> Any:
    multiplier, norm = 2 * math.sqrt(use.rounds) / use.mu, _log(rng, 1e-3, 1e3)
    kinds = [
        lambda: gaussian(multiplier, clip_norm=norm), lambda: gaussian(multiplier, clip=norm),
        lambda: LocalGaussian(norm, multiplier), lambda: SignSGD(norm, multiplier),
    ]  # fmt: skip
    return rng.choice(kinds)()


def _any(rng: random.Random, use: _Use) -> tuple[str, Any]:
    kind = rng.choice(["noise", "noise", "noise", "bits", "bits", "real", "levels"])
    if kind == "noise":
        return kind, _noise(rng, use)
    if kind == "real":
        return "noise", _real(rng, use)
    levels = rng.randint(3, 5) if kind == "levels" else 2
    return kind, _bit(rng, use, rng.choice(["aggregate", "aggregate", "local"]), levels)


def _words(*parts: Any) -> str:
    return " ".join(map(str, parts))


def _mechanism(rng: random.Random) -> Drawn:
    use, delta = _Use.drawn(rng), _delta(rng)
    kind, mechanism = _any(rng, use)
    fits = mechanism.clip_norm is not None
    examples = rng.choice([None, _whole(rng, 1, 500)]) if fits else None
    how = {"dimension": use.dimension, "rounds": use.rounds, "delta": delta, "examples": examples}
    if rng.random() < 0.1:  # coordinates clipped one by one
        levels = rng.randint(2, 16)
        channel = rq.rqm(clip=1.5, margin=rng.uniform(1, 9), levels=levels, keep=0.42)
        mechanism, kind = rq.ChannelMechanism(channel), "levels"
        how |= {"dimension": rng.randint(1, 5), "rounds": rng.randint(1, 5), "examples": None}
    return Drawn(kind, _words(mechanism, how), lambda: rq.certificate_file(mechanism, **how))


def _hidden(rng: random.Random) -> Drawn:
    use, delta = _Use.drawn(rng), _delta(rng)
    cohort = rng.randint(1, use.cohort)
    draw: Any = rng.choice(["poisson", "fixed"])
    kind, mechanism = _any(rng, use._replace(mu=use.mu * 2))
    central = mechanism.trust == "central"
    models = rng.random() < 0.5 or (draw == "fixed" and not central)
    everybody = draw == "poisson" and not central
    cohorts = HiddenCohorts(draw, use.cohort, cohort, use.rounds, models, everybody)

    def text() -> str:
        claims = [
            rq.account([released], delta) for relation in NEIGHBORINGS
            if (released := cohorts.release(mechanism, use.dimension, use.rounds, relation))
        ]  # fmt: skip
        terms = ReleaseTerms(mechanism, use.dimension, use.rounds, cohorts=cohorts)
        return Statement([[terms]], claims).text()

    return Drawn("hidden", _words(kind, mechanism, use, cohorts, delta), text)


def _account(rng: random.Random) -> Drawn:
    examples, neighboring = rng.choice([None, _whole(rng, 2, 200)]), rng.choice(NEIGHBORINGS)
    accountant = RunAccountant(_delta(rng), neighboring)
    kinds, words = set(), [examples, neighboring, accountant.delta]
    for _ in range(rng.randint(1, 3)):
        use = _Use.drawn(rng)
        kind = rng.choice(["noise", "bits"])
        mechanism = _noise(rng, use) if kind == "noise" else _bit(rng, use, "aggregate")
        scalars = None
        if examples is None and rng.random() < 0.5:
            numbers = (Number("loss", 0, 5), Number("weight", 0, 10))
            scalars = AuxiliaryNumbers(mechanism.clip_norm, numbers, rng.choice([None, "weight"]))
        with contextlib.suppress(ValueError):  # an offer that nobody may make
            offer = Offer(mechanism, use.dimension + 5, scalars=scalars, examples=examples)
            for _ in range(rng.randint(1, 2)):
                clients = frozenset(rng.sample(range(4), rng.randint(1, 3)))
                accountant.compose(RoundEvent(offer, clients), use.rounds)
                words.append((mechanism, use, scalars, sorted(clients)))
            kinds.add(kind)
    kind = "bits" if "bits" in kinds else "noise"
    return Drawn(kind, _words(*words), lambda: rq.certificate_file(accountant))


def _queries(rng: random.Random) -> Any:
    columns = {"age": (18, 100), "height": (100, 220), "weight": (30, 200)}
    some = dict(rng.sample(sorted(columns.items()), rng.randint(2, 3)))
    every = {
        "mean": rq.Mean(18, 100), "counts": rq.Counts([*range(rng.randint(2, 40))]),
        "quantiles": rq.Quantiles(100, 220, steps=rng.choice([2, 3, 32, 100])),
        "covariance": rq.Covariance(some),
    }  # fmt: skip
    return dict(rng.sample(sorted(every.items()), rng.randint(1, 4)))


def _survey(rng: random.Random, trusts: Any, unit: Any, delta: float) -> Any:
    trust, clients = rng.choice(trusts), _whole(rng, 2, 500)
    most = rng.randint(1, 50) if unit == "example" else 1
    queries, epsilon = _queries(rng), _log(rng, 0.05, 8)
    return lambda: rq.survey(
        queries, epsilon, delta, trust, clients, clients * most, unit=unit, most=most
    )


def _table(rng: random.Random) -> Drawn:
    unit = rng.choice(["client", "example"])
    survey = _survey(rng, ["central", "aggregate", "local"], unit, _delta(rng))
    return Drawn("noise", _words("table", unit), lambda: rq.certificate_file(survey()))


def _after(rng: random.Random) -> Drawn:
    """Rounds after a guarantee, a table that the run standardises by, or both."""
    use, delta, relation = _Use.drawn(rng), _delta(rng), rng.choice(NEIGHBORINGS)
    kind = rng.choice(["noise", "bits"])
    mechanism = _noise(rng, use) if kind == "noise" else _bit(rng, use, "aggregate")
    what = rng.choice(["spent", "table", "both"])
    survey = _survey(rng, ["aggregate"], "client", delta / 8)
    spent = Guarantee(_log(rng, 0.01, 3), delta / 4, relation, "aggregate", math.inf, 1)

    def text() -> str:
        table = survey() if what != "spent" else None
        before = [spent] if what != "table" else []
        before += [table.under(relation)] if table else []
        left = delta
        for each in before:
            _, left = each.remaining(math.inf, left)
        claim = rq.account([mechanism.release(use.dimension, use.rounds, relation)], left)
        for each in before:
            claim += each
        terms: list[Any] = [ReleaseTerms(mechanism, use.dimension, use.rounds)]
        terms += [ReleaseTerms(table, 0, 1)] if table else []
        return Statement([[*terms, *([spent] if what != "table" else [])]], [claim]).text()

    return Drawn(kind, _words("after", what, relation, mechanism, use, delta, spent), text)


def _plan(rng: random.Random) -> Drawn:
    trust = rng.choice(["aggregate", "aggregate", "local", "model"])
    noise: Any = rng.choice(["clients", "helper", "parties"]) if trust == "aggregate" else "clients"
    names = ["helper-noise"] if noise != "clients" else ["stochastic-rounding"]
    if trust != "local" and noise == "clients" and rng.random() < 0.5:
        names = [rng.choice(sorted(NOISES))]
    need = {
        "dimension": _whole(rng, 2, 3000), "population": (n := _whole(rng, 2, 60)),
        "cohort": rng.randint(1, n), "rounds": _whole(rng, 1, 200),
        "epsilon": _log(rng, 0.5, 12), "delta": _delta(rng), "trust": trust, "mechanisms": names,
        "privacy": rq.Privacy(neighboring=rng.choice(NEIGHBORINGS), noise=noise, bits=12),
    }  # fmt: skip
    kind = "bits" if "stochastic-rounding" in names else "noise"
    kind = "hidden" if trust == "model" else kind
    return Drawn(kind, _words("plan", need), lambda: rq.certificate_file(rq.plan(**need)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as kept:
        home = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(kept)
        for seed in range(int(sys.argv[1]), int(sys.argv[2])):
            found = outcome(seed, home)
            mark = "" if found.fine else "DEFECT "
            print(f"{seed} {mark}{found.word} {found.ratio:.4f} {found.seconds:.1f} s",
                  found.drawn.kind, found.drawn.words, flush=True)  # fmt: skip
            if found.word not in ("verified",):
                print("   ", found.said.strip().replace("\n", "\n    "), flush=True)
