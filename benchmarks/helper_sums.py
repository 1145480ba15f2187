"""Cost of a sum with a helper: python benchmarks/helper_sums.py [CLIENTS [DIMENSION]]

Clients (2,000 by default) send codes of one bit in 100,000 coordinates to a server; a helper, in a
process of its own, removes the masks. All messages are real, every sum is compared with that of the
codes, and one client's seal does not open. Seconds are of one core, as the processor counts them:
of a client (median), of the server and the helper (all clients), beside the goals for 100,000
clients. With fewer clients, "for 100,000" is extrapolated, each side by its seconds for a client,
and says so. The server keeps the masked vectors in a temporary file: 100,000 clients need 22 GB.

Cases are the hybrid key and X25519 in the modulus of any sum (17 bits), and the hybrid in a narrow
modulus of 12 bits, which wraps around with probability 1e-8 at most (docs/theory/narrow-sums.md).
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from results import save

from randquant.channels import wire
from randquant.secure_sums import Helper, HelperSum, HelperTerms, masked_message

CASES = [("MLKEM768_X25519", 17), ("X25519", 17), ("MLKEM768_X25519", 12)]
WHOLE = 100_000
GOALS = {
    "client_seconds": 0.005, "helper_seconds": 20.0, "helper_peak_mb": 1000.0,
    "beside_bytes": {"MLKEM768_X25519": 1500, "X25519": 300},
}  # fmt: skip


def measured(suite: str, bits: int, clients: int, dimension: int) -> dict:
    """One whole sum."""
    draw = np.random.default_rng(bits)
    identity = Ed25519PrivateKey.generate()
    pinned = identity.public_key().public_bytes_raw()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "identity").write_bytes(identity.private_bytes_raw())
        helper = Helper(folder, identity, suite=suite, kept=True)
        terms = HelperTerms(os.urandom(16), helper.key, max(clients, WHOLE), 2, dimension, bits)
        server, wanted = HelperSum(terms), np.zeros(dimension, np.uint32)
        sent: list[float] = []
        size, adding = 0, 0.0
        for client in range(clients):
            codes = draw.integers(0, 2, dimension, dtype=np.uint8)
            start = time.process_time()
            message = masked_message(terms, client, codes, pinned)
            middle = time.process_time()
            if client == 1:
                message = message[:10] + bytes(16) + message[26:]  # a seal that does not open
            else:
                wanted += codes
            size, again = len(message), time.process_time()
            server.add(client, message)
            adding += time.process_time() - again
            sent.append(middle - start)
        start = time.process_time()
        request = server.request()
        (folder / "request").write_bytes(request)
        asking = time.process_time() - start
        done = subprocess.run(
            [sys.executable, __file__, "answer", suite, name], check=True, capture_output=True
        )
        helped = json.loads(done.stdout)
        answer = (folder / "answer").read_bytes()
        start = time.process_time()
        total = server.unmask(answer)
        unmasking = time.process_time() - start
    each = helped["seconds"] / clients
    return {
        "suite": suite, "bits": bits, "clients": clients, "dimension": dimension,
        "exact": bool((total == wanted % 2**bits).all()), "in_sum": len(server.clients),
        "client_seconds": statistics.median(sent),
        "server_add_seconds": adding, "server_ask_seconds": asking,
        "server_unmask_seconds": unmasking,
        "helper_seconds": helped["seconds"], "helper_peak_mb": helped["peak_mb"],
        "message_bytes": size, "beside_bytes": size - wire.masked(dimension, bits) + 40,
        "request_bytes": len(request),
        "for_100000": {
            "extrapolated": clients < WHOLE,
            "helper_seconds": each * WHOLE,
            "server_seconds": (adding + asking) / clients * WHOLE + unmasking,
        },
    }  # fmt: skip


def answer(suite: str, folder: Path) -> dict[str, float]:
    """The helper's part: seconds and the peak of memory of this process, request included."""
    identity = Ed25519PrivateKey.from_private_bytes((folder / "identity").read_bytes())
    helper = Helper(folder, identity, suite=suite, kept=True)
    for bits in (8, 12):  # a service has compiled what packs answers
        code = np.zeros(9, np.uint8 if bits == 8 else np.uint32)
        wire.pack(wire.Format.from_facts(2**bits, "warm"), code)
    start = time.process_time()
    (folder / "answer").write_bytes(helper.answer((folder / "request").read_bytes()))
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "peak_mb": peak}


def main(clients: int = 2000, dimension: int = 100_000) -> None:
    """Measure all cases, print them beside the goals, and save them."""
    measured(*CASES[0], 20, dimension)  # compiles
    rows = []
    for suite, bits in CASES:
        row = measured(suite, bits, clients, dimension)
        rows.append(row)
        whole = row["for_100000"]
        how = "extrapolated to 100,000" if whole["extrapolated"] else "100,000"
        print(
            f"{suite}, {bits} bits, {clients} clients of {dimension} coordinates, exact: "
            f"{row['exact']}\n"
            f"    client           {1e3 * row['client_seconds']:.2f} ms  (goal 5)\n"
            f"    helper           {whole['helper_seconds']:.1f} s, {how}  (goal 20)\n"
            f"    helper's memory  {row['helper_peak_mb']:.0f} MB with {clients}  (goal 1,000)\n"
            f"    server           {whole['server_seconds']:.1f} s, {how}\n"
            f"    bytes beside     {row['beside_bytes']}  "
            f"(goal {GOALS['beside_bytes'][suite]})",
            flush=True,
        )
    save("helper_sums", {"goals": GOALS, "rows": rows})


if __name__ == "__main__" and sys.argv[1:2] == ["answer"]:
    print(json.dumps(answer(sys.argv[2], Path(sys.argv[3]))))
elif __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
