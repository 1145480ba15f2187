"""Cost of proofs of valid codes: python benchmarks/vdaf.py

A client proves that all coordinates of a vector are bits (SumVec), over Field64 with three proofs;
server and helper verify their shares. Milliseconds of one core, as the processor counts them, the
median of some repetitions, beside the goals. Verifying includes reading a share. An upload is the
leader's share with its share of the proofs, and the public share; a helper's sealed seeds come on
top. Every report is also found valid, and one with a coordinate of 2 is not.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from results import save

from randquant.secure_sums import (
    Field64,
    Prio3,
    SumVec,
    chunk_length,
    decode_input_share,
    encode_input_share,
    encode_public_share,
    encode_verifier_share,
)

CTX = b"benchmark"
FIELD = "Field64, three proofs"
GOALS = {
    5089: {"prove_ms": 15.0, "verify_ms": 3.0, "upload_bytes": 50_000},
    50_890: {"prove_ms": 150.0},
    1_000_000: {"prove_ms": 4000.0},
}


def timed(repetitions: int, step: Callable[[], object]) -> float:
    """Median milliseconds of the processor."""
    spent = []
    for _ in range(repetitions):
        start = time.process_time()
        step()
        spent.append(1e3 * (time.process_time() - start))
    return statistics.median(spent)


def measured(length: int) -> dict:
    """One length."""
    chunk = chunk_length(length)
    prio3 = Prio3(SumVec(Field64, length, 1, chunk), 0xFFFFFFFF, 3)
    bits = np.random.default_rng(length).integers(0, 2, length, dtype=np.uint8)
    nonce, key, rand = os.urandom(16), os.urandom(32), os.urandom(prio3.RAND_SIZE)
    repetitions = max(5, min(51, 2_000_000 // length))
    public, shares = prio3.shard(CTX, bits, nonce, rand)
    sent = [encode_input_share(prio3, share) for share in shares]

    def verify(agg_id: int, encoded: bytes) -> tuple:
        share = decode_input_share(prio3, agg_id, encoded)
        return prio3.verify_init(key, CTX, agg_id, nonce, public, share)

    prove = timed(repetitions, lambda: prio3.shard(CTX, bits, nonce, rand))
    leader = timed(repetitions, lambda: verify(0, sent[0]))
    helper = timed(repetitions, lambda: verify(1, sent[1]))
    (state, one), (_, other) = verify(0, sent[0]), verify(1, sent[1])
    decide = timed(repetitions, lambda: prio3.verifier_shares_to_message(CTX, [one, other]))
    prio3.verify_next(state, prio3.verifier_shares_to_message(CTX, [one, other]))
    shares[0].meas_share[:1] = Field64.vec_add(shares[0].meas_share[:1], Field64.vector([2]))
    _, false = prio3.verify_init(key, CTX, 0, nonce, public, shares[0])
    try:
        prio3.verifier_shares_to_message(CTX, [false, other])
        refused = False
    except ValueError:
        refused = True
    return {
        "field": FIELD, "length": length, "chunk_length": chunk, "prove_ms": prove,
        "verify_leader_ms": leader, "verify_helper_ms": helper, "decide_ms": decide,
        "upload_bytes": len(sent[0]) + len(encode_public_share(public)),
        "verifier_share_bytes": len(encode_verifier_share(prio3, one)),
        "false_report_refused": refused,
    }  # fmt: skip


def main() -> None:
    rows = []
    for length, goals in GOALS.items():
        row = measured(length)
        rows.append(row)
        asked = f"  (goals {', '.join(f'{goal}: {at:g}' for goal, at in goals.items())})"
        print(
            f"{length} bits, {FIELD}: prove {row['prove_ms']:.2f} ms, verify "
            f"{row['verify_leader_ms']:.2f} ms (leader) {row['verify_helper_ms']:.2f} ms "
            f"(helper), decide {row['decide_ms']:.2f} ms, upload {row['upload_bytes']} bytes, "
            f"false report refused: {row['false_report_refused']}{asked}",
            flush=True,
        )
    save("vdaf", {"goals": {str(n): g for n, g in GOALS.items()}, "rows": rows})


if __name__ == "__main__":
    main()
