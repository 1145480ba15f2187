"""What sums of one-bit codes cost over Gaussian noise: python benchmarks/vector_sums.py"""

import time

from results import save

import randquant as rq
from randquant.privacy.certificates.sums.kappa_blanket import by_blanket

CASES = [(clients, 4.0, order) for clients in (40, 200, 3400) for order in (2.0, 4.0, 8.0, 12.0)]
CASES += [(1000, ratio, 8.0) for ratio in (2.0, 3.0, 10.0, 30.0)]


def measured(clients: int, ratio: float, order: float) -> dict[str, float]:
    """One bit ±ratio, clip 1: bounds in units of Gaussian noise of variance clients · ratio^2."""
    channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=ratio - 1)
    gaussian = order / (2 * clients * ratio**2)
    started = time.perf_counter()
    found = rq.kappa_sum(channel, clients, order)
    seconds = time.perf_counter() - started
    blanket = by_blanket(channel, clients, order, rq.kappa(channel, order))
    return {
        "clients": clients,
        "value_over_clip": ratio,
        "order": order,
        "lower": found.lower / gaussian,
        "upper": found.upper / gaussian,
        "blanket": blanket.upper / gaussian,
        "seconds": seconds,
    }


if __name__ == "__main__":
    measured(2, 4.0, 2.0)  # compiles
    rows = [measured(*case) for case in CASES]
    for row in rows:
        print(
            "n={clients:<5d} A/clip={value_over_clip:<5g} order {order:<4g} [{lower:.5f}, "
            "{upper:.5f}], blanket {blanket:.5f}, {seconds:.2f} s".format(**row)
        )
    save("vector_sums", {"cases": rows})
