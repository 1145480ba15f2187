"""Noise of a sum's helper and server, beside one bit: python benchmarks/helper_noise.py

Digits' 650 parameters, 200 clients, epsilon 8, in one run: each way is calibrated to the same
guarantee; its error is measured over real rounds (encode, seal, sum, answer, decode) and divided by
what a trusted server's Gaussian noise has. Bytes are those of a client's whole message, its sealed
seed included. Seconds are of the processor, medians of ten rounds: how long helper and server take.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from results import save

import randquant as rq
from randquant.channels import Key, wire
from randquant.rounds import Offer, draw_noise
from randquant.secure_sums import Helper, HelperSum, HelperTerms, masked_message

DIMENSION, CLIENTS, ROUNDS, EPSILON, TIMES = 650, 200, 20, 8.0, 10
WAYS = ("clients", "helper", "parties")


def one_round(
    mechanism: Any, updates: np.ndarray, helper: Helper, pinned: bytes, session: bytes
) -> dict[str, Any]:
    """Sum the updates once: the decoded mean's squared error, bytes, seconds."""
    offer = Offer(mechanism, DIMENSION)
    digest = hashlib.sha256(offer.to_text().encode()).digest()
    terms = HelperTerms(
        session, helper.key, CLIENTS, CLIENTS, offer.size, offer.sum_bits(CLIENTS), digest,
        noise_variance=offer.helper_variance,
    )  # fmt: skip
    server = HelperSum(terms)
    coding = mechanism.coding
    size = 0
    for client, update in enumerate(updates):
        codes = wire.unpack(coding, mechanism.encode(update, Key.generate()), offer.size)
        message = masked_message(terms, client, codes, pinned)
        server.add(client, message)
        size = len(message)
    request = server.request(offer.to_text())
    start = time.process_time()
    answer = helper.answer(request)
    helping = time.process_time() - start
    start = time.process_time()
    totals = server.unmask(answer, offer.largest).astype(np.int64)
    if mechanism.helper_noise and mechanism.server_noise:
        totals += mechanism.party_noise(DIMENSION, Key.generate())
    mean = mechanism.decode(totals % 2**terms.bits, CLIENTS, DIMENSION)
    opening = time.process_time() - start
    error = float(np.mean(np.square(mean - updates.mean(axis=0))))
    return {"error": error, "bytes": size, "helper": helping, "server": opening}


def measured(noise: str, updates: np.ndarray) -> dict[str, Any]:
    """Calibrate one way to the target, and measure its rounds."""
    privacy = rq.Privacy(noise=noise) if noise != "clients" else rq.Privacy(bits=1)
    names = ["stochastic-rounding"] if noise == "clients" else ["helper-noise"]
    plan = rq.plan(DIMENSION, CLIENTS, CLIENTS, ROUNDS, EPSILON, privacy=privacy, mechanisms=names)
    assert plan.recommended is not None
    assert plan.recommended.guarantee is not None
    mechanism = plan.mechanism
    identity = Ed25519PrivateKey.generate()
    pinned = identity.public_key().public_bytes_raw()
    with tempfile.TemporaryDirectory() as folder:
        helper = Helper(folder, identity, draw_noise=draw_noise)
        rounds = [
            one_round(mechanism, updates, helper, pinned, str(number).encode())
            for number in range(TIMES + 1)  # the first one makes tables
        ][1:]
    gaussian = plan.need.gaussian
    return {
        "noise": noise, "epsilon": plan.recommended.guarantee.epsilon,
        "error_ratio": float(np.sqrt(np.mean([each["error"] for each in rounds]))) / gaussian,
        "bytes": rounds[0]["bytes"],
        **{name: statistics.median(each[name] for each in rounds) for name in ("helper", "server")},
    }  # fmt: skip


def main() -> None:
    """Measure, print and save."""
    draw = np.random.default_rng(0)
    updates = draw.normal(size=(CLIENTS, DIMENSION)).astype(np.float32)
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    rows = [measured(noise, updates) for noise in WAYS]
    print("| noise of | epsilon | error / Gaussian | a client's bytes | helper, ms | server, ms |")
    for row in rows:
        times = f"{1000 * row['helper']:.1f} | {1000 * row['server']:.2f}"
        print(
            f"| {row['noise']} | {row['epsilon']:.5f} | {row['error_ratio']:.3f} | "
            f"{row['bytes']:,} | {times} |"
        )
    setting = {"dimension": DIMENSION, "clients": CLIENTS, "rounds": ROUNDS}
    save("helper_noise", {**setting, "rows": rows})


if __name__ == "__main__":
    main()
