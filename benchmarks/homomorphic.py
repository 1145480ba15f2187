"""Sums with a helper beside NVFlare's homomorphic ones: python benchmarks/homomorphic.py

Four sites add up updates of several lengths in two ways, in one run: NVFlare's (CKKS of TenSEAL
with NVFlare's own parameters, all sites with one secret key, and each decrypts the sum), and codes
of three bits, drawn, masked and sealed to a helper. Seconds are of the processor, medians of five
sums; bytes are those of one site's upload. Needs `pip install tenseal`.

The two protect from others: with CKKS whoever has the sites' key and the server's messages reads
each update, and what the sum itself tells of a patient stays; with a helper the codes are noisy,
and helper and server together read them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from results import save

import randquant as rq
from randquant.channels import wire
from randquant.secure_sums import Helper, HelperSum, HelperTerms, masked_message

SITES, TIMES = 4, 5
DIMENSIONS = [13, 5_089, 100_000]
DEGREE, MODULI, SCALE = 8192, [60, 40, 40], 2.0**40
"""Defaults of nvflare.lighter.impl.he."""

Row = dict[str, float]


def timed(work: Callable[[], object]) -> tuple[object, float]:
    """What it returns, and its processor seconds."""
    start = time.process_time()
    found = work()
    return found, time.process_time() - start


def homomorphic(updates: np.ndarray) -> Row:
    """One sum as NVFlare makes it."""
    import tenseal as ts  # type: ignore[import-not-found]

    context = ts.context(ts.SCHEME_TYPE.CKKS, DEGREE, -1, MODULI)
    context.global_scale = SCALE
    open_context = context.copy()
    open_context.make_context_public()
    sent, site = timed(lambda: [ts.ckks_vector(context, row).serialize() for row in updates])
    assert isinstance(sent, list)

    def add() -> bytes:
        first, *rest = (ts.ckks_vector_from(open_context, each) for each in sent)
        for each in rest:
            first += each
        return first.serialize()

    total, server = timed(add)
    back, decrypting = timed(lambda: ts.ckks_vector_from(context, total).decrypt())
    assert np.abs(np.asarray(back) - updates.sum(axis=0)).max() < 1e-3
    return {"site": site / SITES + decrypting, "server": server, "upload": len(sent[0])}


def with_helper(updates: np.ndarray) -> Row:
    """One sum of codes with a helper; drawing them counts for the site."""
    size, identity = updates.shape[1], Ed25519PrivateKey.generate()
    pinned = identity.public_key().public_bytes_raw()
    channel = rq.pbm(clip=0.5, theta=0.25, trials=7)
    mechanism = rq.VectorMechanism(channel, clip_norm=1.0, trust="aggregate", cohort=SITES)
    with tempfile.TemporaryDirectory() as folder:
        helper = Helper(folder, identity)
        padded, bits = mechanism.size(size), mechanism.sum_bits(size, SITES)
        terms = HelperTerms(b"one", helper.key, SITES, SITES, padded, bits)
        server = HelperSum(terms)
        coding = mechanism.coding
        assert coding is not None

        def message(client: int) -> bytes:
            payload = mechanism.encode(updates[client], rq.Key.generate())
            codes = wire.unpack(coding, payload, padded)
            return masked_message(terms, client, codes, pinned)

        sent, site = timed(lambda: [message(client) for client in range(SITES)])
        assert isinstance(sent, list)
        _, adding = timed(lambda: [server.add(*each) for each in enumerate(sent)])
        request = server.request()
        answer, helping = timed(lambda: helper.answer(request))
        assert isinstance(answer, bytes)
        largest = channel.levels - 1
        _, ending = timed(
            lambda: mechanism.decode(server.unmask(answer, largest).astype(np.int64), SITES, size)
        )
    return {"site": site / SITES, "server": adding + ending, "helper": helping,
            "upload": len(sent[0])}  # fmt: skip


def main() -> None:
    """Measure, print and save."""
    try:
        import tenseal  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        sys.exit("homomorphic.py: Expected TenSEAL, found none: pip install tenseal.")
    draw, rows = np.random.default_rng(0), []
    print("| coordinates | way | a site, ms | server, ms | helper, ms | upload, bytes |")
    for size in DIMENSIONS:
        updates = draw.normal(size=(SITES, size)).astype(np.float32)
        updates /= np.linalg.norm(updates, axis=1, keepdims=True)
        for name, way in (("homomorphic", homomorphic), ("helper", with_helper)):
            way(updates)  # compiles
            runs = [way(updates) for _ in range(TIMES)]
            row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            rows.append({"dimension": size, "way": name, **row})
            times = [f"{1000 * row.get(key, 0.0):.1f}" for key in ("site", "server", "helper")]
            print(f"| {size:,} | {name} | {' | '.join(times)} | {row['upload']:,.0f} |")
    save("homomorphic", {"sites": SITES, "rows": rows})


if __name__ == "__main__":
    main()
