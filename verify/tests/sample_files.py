"""Certificates of small runs, written here from the format's page alone."""

from __future__ import annotations

import hashlib
import json
import math
from fractions import Fraction


def norm(threshold=1.0, dimension=100, sent=None, rotate=True):
    rotated = 1 << (dimension - 1).bit_length() if rotate else dimension
    sent = rotated if sent is None else sent
    update = {"clip": "norm", "threshold": float(threshold).hex()}
    return {**update, "dimension": dimension, "rotated": rotated, "sent": sent}


def release(kind, rounds=1, cohort=1, update=None, examples=None, **fields):
    shared = {"kind": kind, "rounds": rounds, "cohort": cohort, "update": update}
    return {**shared, "examples": examples, **fields}


def one_bit(clip, level, bits=62):
    """One bit whose levels are at +-level, for inputs from -clip to clip."""
    low = round((level - clip) / (2 * level) * 2**bits)
    rows = [[2**bits - low, low], [low, 2**bits - low]]
    inputs = [float(-clip).hex(), float(clip).hex()]
    return {"inputs": inputs, "weights": rows, "denominator": 2**bits}


def many_bits(trials, vertices, clip, lowest, even=Fraction(1, 2**20)):
    """Binomial codes, whose probability rises evenly from `lowest`; some codes are drawn evenly."""
    rows = []
    for k in range(vertices):
        p = lowest + (1 - 2 * lowest) * Fraction(k, vertices - 1)
        law = [math.comb(trials, j) * p**j * (1 - p) ** (trials - j) for j in range(trials + 1)]
        row = [round(2**62 * ((1 - even) * mass + even / (trials + 1))) for mass in law]
        row[trials // 2] += 2**62 - sum(row)
        rows.append(row)
    inputs = [clip * (2 * k / (vertices - 1) - 1) for k in range(vertices)]
    return {"inputs": [float(x).hex() for x in inputs], "weights": rows, "denominator": 2**62}


def site(epsilon, relation="replace_one", examples=230):
    """A hospital that is seen by itself: codes of 5 bits, one patient of 230, 20 rounds."""
    channel = many_bits(31, 17, 0.353553, Fraction(249503, 10**6))
    sent = release("codes", 20, update=norm(1, 82), examples=examples, channel=channel)
    return certificate([sent], [claim(epsilon, 1e-5, "example", relation, (9.0).hex())], "local")


def claim(epsilon, delta=1e-5, unit="client", relation="replace_one", order="inf"):
    terms = {"unit": unit, "relation": relation, "order": order}
    return {**terms, "epsilon": float(epsilon).hex(), "delta": float(delta).hex()}


def certificate(releases, claims, trust="aggregate", accounts=None):
    accounts = [releases] if accounts is None else accounts
    cohorts = [r["cohort"] for account in accounts for r in account]
    cohorts += [r["counts_on"]["cohort"] for a in accounts for r in a if "counts_on" in r]
    return {
        "format": "randquant certificate, version 1",
        "made_by": "a test",
        "trust": trust,
        "simulated": False,
        "honest_others": max(cohorts) - 1,
        "accounts": accounts,
        "claims": claims,
    }


def sealed(data):
    """The bytes of a file, with its digest."""
    data = {key: value for key, value in data.items() if key != "digest"}
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    data = {**data, "digest": hashlib.sha256(text.encode()).hexdigest()}
    return (json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n").encode()


def gaussian(epsilon=4.37718, relation="replace_one"):
    sent = release("gaussian noise", 16, update=norm(rotate=False), noise_in_clip_norms=(8.0).hex())
    return certificate([sent], [claim(epsilon, relation=relation)], "central")


def bits(epsilon=7.64506):
    channel = one_bit(0.125, 1, 4)
    sent = release("codes", 100, 40, norm(0.5, 50), channel=channel)
    return certificate([sent], [claim(epsilon)])


def skellam(epsilon=7.51168, unit="client"):
    grid = {"scale": (84.28682868312676).hex(), "bound": 7226}
    noise = {"law": "skellam", "variance": (28904.0).hex()}
    sent = release("integer noise", 10, 4, norm(1, 100), 50, grid=grid, noise=noise)
    return certificate([sent], [claim(epsilon, unit=unit)])


def table(epsilon, law="discrete-laplace", unit="example", parties=None, **parameter):
    blocks = [
        {"encoding": "cells", "amplitude": 900, "cells": 5},
        {"encoding": "tree", "amplitude": 600, "cells": 12},
        {"encoding": "products", "amplitude": 600, "columns": 2},
    ]
    noise = {"law": law, **{k: float(v).hex() for k, v in parameter.items()}}
    fields = {"noise": noise, "most": 3, "blocks": blocks}
    if parties:
        sent = release("party table", parties=list(parties), **fields)
    else:
        sent = release("table", 1, 5, **fields)
    return certificate([sent], [claim(epsilon, 1e-9, unit)])


GRID = {"scale": (44.80458500275844).hex(), "bound": 2072}


def party(epsilon=4.98334, unit="client", parties=("helper", "server")):
    """The format's worked example of noise of the parties."""
    noise = {"law": "discrete-gaussian", "variance": (33152.0).hex()}
    fields = {"grid": dict(GRID), "noise": noise, "parties": list(parties)}
    sent = release("party noise", 5, update=norm(1, 50), examples=50, **fields)
    return certificate([sent], [claim(epsilon, unit=unit)])


def hidden(draw="poisson", rate=0.1):
    return {"hidden": {"draw": draw, "rate": float(rate).hex()}}


def hidden_gaussian(epsilon=4.3682, relation="replace_one", rounds=100, **terms):
    fields = {"noise_in_clip_norms": (2.0).hex(), **hidden(**terms)}
    sent = release("gaussian noise", rounds, update=norm(rotate=False), **fields)
    return certificate([sent], [claim(epsilon, relation=relation)], "central")


def hidden_party(epsilon, relation="replace_one", rounds=3, **terms):
    noise = {"law": "discrete-gaussian", "variance": (33152.0).hex()}
    fields = {"grid": dict(GRID), "noise": noise, "parties": ["helper"], **hidden(**terms)}
    sent = release("party noise", rounds, update=norm(1, 50), **fields)
    return certificate([sent], [claim(epsilon, relation=relation)], "model")


def hidden_bits(epsilon, rounds=3, **terms):
    fields = {"channel": one_bit(0.125, 1, 4), **hidden(**terms)}
    sent = release("codes", rounds, 20, norm(0.5, 50), **fields)
    return certificate([sent], [claim(epsilon)], "model")


def spent(epsilon, before=0.5, delta=1e-6, unit="client", relation="replace_one", **counts_on):
    """The first worked example after something was spent; the third, if that says on whom."""
    terms = {"unit": unit, "relation": relation}
    if counts_on:
        sent = skellam()["accounts"][0]
        terms["counts_on"] = counts_on
        sent += [release("spent", epsilon=float(before).hex(), delta=float(delta).hex(), **terms)]
        return certificate(sent, [claim(epsilon)])
    sent = gaussian()["accounts"][0]
    sent += [release("spent", epsilon=float(before).hex(), delta=float(delta).hex(), **terms)]
    return certificate(sent, [claim(epsilon)], "central")
