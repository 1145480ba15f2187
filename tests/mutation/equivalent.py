"""Mechanical mutants that were looked at and that nobody can notice."""

from __future__ import annotations

import re

ALIKE: list[tuple[str, str, str]] = [
    (r"^@final$", "", "read by type checkers only"),
    (
        r"^@functools\.(cache|lru_cache\(maxsize=( ?\d+|None)\))$",
        "",
        "computed again each time, or kept for the next: the same is computed",
    ),
    (
        r"frozen=True, slots=False\)$",
        "frozen=True, slots=True)",
        "how an object is stored: frozen, it takes no other attribute with slots or without",
    ),
    (
        r"^(@numba\.njit\(.*)cache=False",
        r"\1cache=True",
        "compiled again in each process, or kept on disk for the next: the same is compiled",
    ),
    (
        r"reshape\((- 2|~1)",
        "reshape(-1",
        "NumPy reads every negative length as the one that is left",
    ),
]
"""(pattern, text, why), of any file: lines that are the same with text in place of the pattern."""


def equivalent(file: str, before: str, after: str) -> str:
    """Why nobody can notice that lines of a file are others; empty if somebody can."""
    for name, old, new, why in EQUIVALENT_LINES:
        if (name, old, new) == (file, before, after):
            return why
    for pattern, text, why in ALIKE:
        if re.sub(pattern, text, before.strip()) == re.sub(pattern, text, after.strip()):
            return why
    return ""


EQUIVALENT_LINES: list[tuple[str, str, str, str]] = [
    (
        "privacy/accounting/chain.py",
        "return ChainLaw(self.start + other.start + first, mass[first : last + 1])",
        "return ChainLaw(self.start + other.start + first, mass[first : last + 2])",
        "one more entry below 1e-300, which counts nowhere",
    ),
    (
        "privacy/certificates/sums/law.py",
        "return mantissa == 0 or (exponent + LIMB < -floor or math.log2(mantissa) + exponent < -floor)",
        "return mantissa == 0 or (exponent % LIMB < -floor or math.log2(mantissa) + exponent < -floor)",
        "a quick answer where the exponent alone decides: mantissas are below 2**LIMB, so the other "
        "condition gives the same",
    ),
    (
        "privacy/accounting/cohorts.py",
        "return math.nextafter(self.cohort / self.population, 1.0)",
        "return math.nextafter(self.cohort / self.population, 2.0)",
        "a quotient of 1 is returned before: below 1 the next float is the same towards 1 and 2",
    ),
    (
        "aggregation/modulus.py",
        "TILTS = np.geomspace(1e-6, 300, 320)",
        "TILTS = np.geomspace(1e-6, 300, 321)",
        "the bound is the least over a grid: every grid gives a proven one, as close as the other",
    ),
    (
        "channels/keys.py",
        "_ZEROS = memoryview(bytes(1 << 17))  # plaintext whose encryption is the cipher's key stream",
        "_ZEROS = memoryview(bytes(1 << 16))  # plaintext whose encryption is the cipher's key stream",
        "how many bytes of the stream are read at a time: the cipher goes on where it stopped",
    ),
    (
        "channels/wire/payload.py",
        "if channel.bits > 8 or channel.levels < 1 << channel.bits:",
        "if channel.bits > 8 or channel.levels < 2 << channel.bits:",
        "codes of which every bit pattern is one are checked too before they are added: none fails",
    ),
    (
        "aggregation/coordinate.py",
        "return encode_payload(self.channel, vector, key, threads=1)  # clients may share a machine",
        "return encode_payload(self.channel, vector, key, threads= 2)  # clients may share a machine",
        "speed only: payloads do not depend on the number of threads",
    ),
    (
        "integrations/flower/mod.py",
        "if head.step == messages.SHARE:",
        "if head.step >= messages.SHARE:",
        "only share, confirm and reveal come here, and share is the last of them in the alphabet",
    ),
    (
        "privacy/guarantee.py",
        "return value * (1 + 8 * 2.0**-53)",
        "return value * (1 + 9 * 2.0**-53)",
        "1 + 9 · 2**-53 is a tie between floats and rounds to 1 + 8 · 2**-53",
    ),
    (
        "privacy/certificates/metric.py",
        "best = (-1.0, 0.0, 0, 0)",
        "best = (-1.0, 0.0, 1, 0)",
        "every candidate is at least 0 and takes the place of the first",
    ),
    (
        "privacy/certificates/metric.py",
        "best = (-1.0, 0.0, 0, 0)",
        "best = (- 0.0, 0.0, 0, 0)",
        "a candidate of 0 with a later vertex is larger: there are two vertices at least",
    ),
    (
        "privacy/accounting/releases.py",
        "LADDER = (2.0, 16.0, 128.0, 1024.0)",
        "LADDER = ( 3.0, 16.0, 128.0, 1024.0)",
        "kappa grows with the order (theory/vector.md, Proposition 9): what is skipped is not the least",
    ),
    (
        "privacy/certificates/coordinate.py",
        "upper_bound = 0.0",
        "upper_bound = -1.0",
        "the upper end of a divergence is never below 0",
    ),
    (
        "privacy/certificates/coordinate.py",
        "best = (-1.0, 0, 0)",
        "best = (- 2.0, 0, 0)",
        "the lower end of a divergence is never below 0, and takes the place of either",
    ),
    (
        "privacy/certificates/coordinate.py",
        'if neighboring == "zero_out":',
        'if neighboring >= "zero_out":',
        "of the two relations that are accepted, zero_out is the last in the alphabet",
    ),
    (
        "privacy/certificates/coordinate.py",
        "lower, upper = (np.stack(side) for side in zip(*pairs, strict=True))",
        "lower, upper = (np.stack(side) for side in zip(*pairs, strict=False))",
        "both are pairs of a lower and an upper end",
    ),
    (
        "privacy/certificates/coordinate.py",
        "(math.inf if b == 0 else int(a) / int(b)) if a > 0 else -1.0",
        "(math.inf if b == 0 else int(a) / int(b)) if a > 0 else not 1.0",
        "0 in place of -1, among ratios of which the largest is above 0",
    ),
    (
        "privacy/certificates/coordinate.py",
        "(math.inf if b == 0 else int(a) / int(b)) if a > 0 else -1.0",
        "(math.inf if b <= 0 else int(a) / int(b)) if a > 0 else -1.0",
        "weights are not negative",
    ),
    (
        "aggregation/coordinate.py",
        "self.release(1, 1)  # checks the arguments",
        "self.release(1, 0)  # checks the arguments",
        "trust and cohort are checked whatever the number of rounds",
    ),
    (
        "privacy/certificates/coordinate.py",
        "best = (-1.0, 0, 0)",
        "best = (-1.0, -1, 0)",
        "the lower end of a divergence is never below 0, and takes the place of either",
    ),
    (
        "privacy/certificates/coordinate.py",
        "for a, b in zip(p, q, strict=True)",
        "for a, b in zip(p, q, strict=False)",
        "two rows of one channel have as many codes",
    ),
    (
        "channels/encoding/codec.py",
        "raise not_finite(widen(flat[bad : bad + 1])[0], *map(int, index))",
        "raise not_finite(widen(flat[bad : bad + 1])[ -1], *map(int, index))",
        "the first of one value is the last",
    ),
    (
        "channels/encoding/thresholds.py",
        "left, right = (inputs[0] + (np.arange(CELL_BUCKETS + 1) + shift) / scale for shift in (-1, 2))",
        "left, right = (inputs[0] + (np.arange(CELL_BUCKETS + 2) + shift) / scale for shift in (-1, 2))",
        "a bucket beyond clip, which no clipped input is in; it is the last cell's alone, and adds no hop",
    ),
    (
        "channels/encoding/thresholds.py",
        "ends = starts + ((1 << (CODE_BITS - GUIDE_BITS)) - 1)",
        "ends = starts + (( 2 << (CODE_BITS - GUIDE_BITS)) - 1)",
        "more entries of the guide are compared, with the same result (theory/encoding.md, Proposition 4)",
    ),
    (
        "channels/encoding/kernel.py",
        "GUIDE_BITS = 10",
        "GUIDE_BITS = 11",
        "a longer guide: what it leaves open is compared (theory/encoding.md, Proposition 4)",
    ),
    (
        "channels/wire/block_codes.py",
        "LARGEST = 256",
        "LARGEST = 255",
        "256 levels are a power of two, whose block is one code either way",
    ),
    (
        "channels/wire/block_codes.py",
        "bits = (levels**codes - 1).bit_length()",
        "bits = (levels**codes - 0).bit_length()",
        "no power of these levels is one of two, and only then the lengths differ",
    ),
    (
        "channels/wire/block_codes.py",
        "if levels & (levels - 1) == 0 or levels > LARGEST:",
        "if levels & (levels - 2) == 0 or levels > LARGEST:",
        "zero for the same levels: of an odd number above 1 both have the last bit, of an even one 2m it is twice m & (m - 1); a single level has the same block by the loop",
    ),
    (
        "channels/wire/compression.py",
        "count = max(k for k in range(1, 9) if levels**k <= LARGEST)",
        "count = max(k for k in range( 0, 9) if levels**k <= LARGEST)",
        "no code in a byte is never the most",
    ),
    (
        "channels/wire/kernel.py",
        "last = np.uint64(body.shape[0] - 1)",
        "last = np.uint64(body.shape[ -1] - 1)",
        "a body has one dimension",
    ),
    (
        "channels/wire/payload.py",
        "pack_codes = kernel.pack if channel.bits <= 8 else kernel.pack_wide",
        "pack_codes = kernel.pack if channel.bits == 8 else kernel.pack_wide",
        "either packs codes of up to 8 bits in the same way: one by one, lowest bit first",
    ),
    (
        "aggregation/secagg/unmasking.py",
        "return [(-1, crypto.self_masking_key(seed, context(self.terms, client, client)))]",
        "return [(not 1, crypto.self_masking_key(seed, context(self.terms, client, client)))]",
        "a mask is added where the sign is above 0, and taken off with -1 as with 0",
    ),
    (
        "privacy/accounting/amplification.py",
        "first = min(float(logs[0]), _log(two) if two > 0 else -math.inf)",
        "first = min(float(logs[0]), _log(two) if two > 0 else +math.inf)",
        "where D_2 is 0 so is V_2: its log is minus infinity already",
    ),
    (
        "privacy/accounting/amplification.py",
        "moments = [_log(rate) + _log_expm1((order - 1) * renyi(order) * (1 + 2 * UNIT))]",
        "moments = [_log(rate) + _log_expm1((order - 1) * renyi(order) * (1 + 1 * UNIT))]",
        "still a bound: an argument v that is a unit lower moves log(e^v - 1) by (v + 1) units at most, and `_log_expm1` raises by 32 of v + 1, of which it needs 12",
    ),
    (
        "privacy/accounting/composition/envelope.py",
        "if 8 * np.count_nonzero(below) < len(false):",
        "if 7 * np.count_nonzero(below) < len(false):",
        "how long points are sorted out before the exact hull, which is that of all points either way",
    ),
    (
        "privacy/accounting/composition/fourier.py",
        "moved = 4 * UNIT * (abs(epsilon) + farthest)  # error of each difference",
        "moved = 3 * UNIT * (abs(epsilon) + farthest)  # error of each difference",
        "still a bound: two differences of floats, each within a unit of itself, and the points are exact",
    ),
    (
        "privacy/accounting/composition/loss.py",
        "step *= 2",
        "step *= 3",
        "how fast the search walks: both ends are evaluated points, and as close",
    ),
    (
        "privacy/accounting/composition/loss.py",
        "slack = 12 * UNIT * (abs(first) + abs(second) + abs(math.log(integral)) + 1)",
        "slack = 12 * UNIT * (abs(first) + abs(second) + abs(math.log(integral)) + 0)",
        "what theory/composition.md, Proposition 3 asks for: 12 units of the three absolute values",
    ),
    (
        "privacy/accounting/releases.py",
        "below = [step for step in LADDER if 8 * step <= order]",
        "below = [step for step in LADDER if 7 * step <= order]",
        "kappa grows with the order (theory/vector.md, Proposition 9): what is skipped is not the least",
    ),
    (
        "privacy/accounting/releases.py",
        "if all(self._kappa(step) * square < least for step in below):",
        "if all(self._kappa(step) * square <= least for step in below):",
        "where they are equal, kappa at the larger order is not below the least either",
    ),
    (
        "privacy/accounting/accountant.py",
        "best, step = _nearest(1 + math.sqrt(-math.log(delta) / rate)), 4",
        "best, step = _nearest(1 + math.sqrt(-math.log(delta) / rate)), 5",
        "the descent ends with steps of 1 either way, where neither neighbour is lower: epsilon is quasi-convex in the order",
    ),
    (
        "aggregation/rotation.py",
        'words = Key.from_seed(seed).fold_in("rotation").words(-(-size // 64))',
        'words = Key.from_seed(seed).fold_in("rotation").words(-(-size - 64))',
        "more words of the same stream are drawn than are read",
    ),
    (
        "aggregation/vector.py",
        "self.channel, self.clip_norm, 1, 1,",
        "self.channel, self.clip_norm,  2, 1,",
        "one coordinate or two: channel, norm, trust and cohort are checked",
    ),
    (
        "aggregation/secagg/masks.py",
        "_PART = 2**16  # coordinates at a time: their masks stay in the processor's cache",
        "_PART = 2** 15  # coordinates at a time: their masks stay in the processor's cache",
        "the cipher goes on where it stopped: parts of 8 bytes each make the same mask",
    ),
    (
        "channels/encoding/batch.py",
        "SLAB = 1 << 17",
        "SLAB = 0 << 17",
        "how many rows are encoded in one call: each has words of its own",
    ),
    (
        "channels/encoding/batch.py",
        "SLAB = 1 << 17",
        "SLAB = 1 << 18",
        "how many rows are encoded in one call: each has words of its own",
    ),
    (
        "channels/encoding/batch.py",
        "if dimension <= CHUNK and block(channel.levels)[0] == 1:",
        "if dimension <= CHUNK and block(channel.levels)[0] < 1:",
        "rows are encoded one by one, to the same payloads, slower",
    ),
    (
        "channels/encoding/batch.py",
        "if dimension <= CHUNK and block(channel.levels)[0] == 1:",
        "if dimension <= CHUNK and block(channel.levels)[ -1] == 1:",
        "of more than one bit rows are encoded one by one, to the same payloads, slower",
    ),
    (
        "channels/encoding/batch.py",
        "for encoder, row in zip(encoders, words, strict=True):",
        "for encoder, row in zip(encoders, words, strict=False):",
        "rows and encoders are parts of lists of one length, cut alike",
    ),
    (
        "channels/encoding/inputs.py",
        "if x.dtype == torch.bfloat16:",
        "if x.dtype is torch.bfloat16:",
        "there is one object of each of torch's dtypes",
    ),
    (
        "channels/encoding/stream.py",
        'or getattr(parts, "ndim", 1) == 0',
        'or getattr(parts, "ndim", 2) == 0',
        "what has no number of dimensions has not 0 of them",
    ),
    (
        "channels/encoding/threads.py",
        "size = -(-x.size // segments // self.chunk) * self.chunk if segments > 1 else x.size",
        "size = -(-x.size // segments // self.chunk) * self.chunk if segments > 2 else x.size",
        "two segments are encoded as one: slower, and codes do not depend on segments",
    ),
    (
        "privacy/accounting/noise_search.py",
        "break",
        "continue",
        "what ended the loop stands before anything that it changes: the turns that are left do the same, and change nothing",
    ),
    (
        "privacy/accounting/sampled.py",
        "return self.rounds * per_round * (1 + 8 * UNIT)",
        "return self.rounds * per_round * (1 + 7 * UNIT)",
        "1 + 7 · 2**-53 is a tie between floats and rounds to 1 + 8 · 2**-53",
    ),
    (
        "privacy/accounting/sampled.py",
        "return self.release.distance * self.rounds * (1 + 8 * UNIT)",
        "return self.release.distance * self.rounds * (1 + 9 * UNIT)",
        "1 + 9 · 2**-53 is a tie between floats and rounds to 1 + 8 · 2**-53",
    ),
    (
        "privacy/accounting/sampled.py",
        'if scheme == "fixed" and release.neighboring == "zero_out":',
        'if scheme == "fixed" and release.neighboring >= "zero_out":',
        "of the two relations that are accepted, zero_out is the last in the alphabet",
    ),
    (
        "privacy/accounting/accountant.py",
        "best, step = _nearest(1 + math.sqrt(-math.log(delta) / rate)), 4",
        "best, step = _nearest(0 + math.sqrt(-math.log(delta) / rate)), 4",
        "where the descent starts: it ends where neither neighbour is lower, and epsilon is quasi-convex in the order",
    ),
    (
        "privacy/accounting/accountant.py",
        "rate = max(_composed(releases, 2.0) / 2, 1e-300)",
        "rate = max(_composed(releases, 3.0) / 2, 1e-300)",
        "where the descent starts: it ends where neither neighbour is lower, and epsilon is quasi-convex in the order",
    ),
    (
        "privacy/certificates/vector.py",
        "size = 4 * (self.lines.weights.shape[1] + 6)",
        "size = 4 * (self.lines.weights.shape[1] + 5)",
        "how many boxes are bounded at a time, and after how many a search settles: it decides how tight the result is, never whether it holds (theory/vector.md, Proposition 8)",
    ),
    (
        "privacy/certificates/vector.py",
        "share = max(batch, len(ranks) // 4)",
        "share = max(batch, len(ranks) // 3)",
        "how many boxes are split at a time: it decides how tight the result is, never whether it holds (theory/vector.md, Proposition 8)",
    ),
    (
        "privacy/accounting/accountant.py",
        "best, step = _nearest(1 + math.sqrt(-math.log(delta) / rate)), 4",
        "best, step = _nearest(1 ** math.sqrt(-math.log(delta) / rate)), 4",
        "where the descent starts: it ends where neither neighbour is lower, and epsilon is quasi-convex in the order",
    ),
    (
        "privacy/accounting/accountant.py",
        "conversion = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)",
        "conversion = np.log1p(- 0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)",
        "which order a calibration looks at first: every order gives a bound, and the accountant's own figure is returned",
    ),
    (
        "channels/encoding/kernel.py",
        "GUIDE_BITS = 10",
        "GUIDE_BITS = 9",
        "a shorter guide: what it leaves open is compared (theory/encoding.md, Proposition 4)",
    ),
    (
        "channels/encoding/inputs.py",
        "return part.astype(np.float32 if part.dtype.itemsize < 8 else np.float64)",
        "return part.astype(np.float32 if part.dtype.itemsize < 7 else np.float64)",
        "floats of at most 8 bytes come here, and none has 7",
    ),
    (
        "channels/encoding/inputs.py",
        'if x.dtype.kind != "f" or x.dtype.itemsize > 8:',
        'if x.dtype.kind != "f" or x.dtype.itemsize > 9:',
        "no floating-point type has 9 bytes",
    ),
    (
        "channels/encoding/thresholds.py",
        "left, right = (inputs[0] + (np.arange(CELL_BUCKETS + 1) + shift) / scale for shift in (-1, 2))",
        "left, right = (inputs[0] + (np.arange(CELL_BUCKETS ^ 1) + shift) / scale for shift in (-1, 2))",
        "one bucket more is one bit more: the number of buckets is even",
    ),
    (
        "channels/encoding/stream.py",
        "return np.ascontiguousarray(held[0]) if len(held) == 1 else np.concatenate(held)",
        "return np.ascontiguousarray(held[0]) if len(held) == 0 else np.concatenate(held)",
        "one array joined is a copy of it",
    ),
    (
        "channels/encoding/batch.py",
        "if dimension <= CHUNK and block(channel.levels)[0] == 1:",
        "if not dimension <= CHUNK and block(channel.levels)[0] == 1:",
        "which of two ways long updates take: both give the same payloads, one is faster for short ones",
    ),
    (
        "channels/encoding/reference.py",
        "draw = ((words >> 32 << LOW_BITS) | low).astype(np.int64)",
        "draw = ((words >> 32 << LOW_BITS) ^ low).astype(np.int64)",
        "the low bits of one and the high bits of the other: no bit is set in both",
    ),
    (
        "privacy/divergence.py",
        "exponents = (order - 1) * np.where(np.isinf(ratio), 0.0, ratio)",
        "exponents = (order - 1) * np.where(np.isinf(ratio), 1.0, ratio)",
        "a stand-in for codes without mass: it only adds 20 units of rounding to the bound, in relation to order - 1",
    ),
    (
        "privacy/guarantee.py",
        "return value * (1 + 8 * 2.0**-53)",
        "return value * (1 + 7 * 2.0**-53)",
        "1 + 7 · 2**-53 is a tie between floats and rounds to 1 + 8 · 2**-53",
    ),
    (
        "privacy/accounting/gaussian.py",
        "if delta == 0 or math.isinf(mu):",
        "if delta <= 0 or math.isinf(mu):",
        "delta is no less than 0: the accountant has checked it",
    ),
    (
        "aggregation/vector.py",
        "self.channel, self.clip_norm, 1, 1,",
        "self.channel, self.clip_norm, 1,  2,",
        "a release that is made only to have its arguments checked: any dimension and number of rounds do",
    ),
    (
        "aggregation/coordinate.py",
        "self.release(1, 1)  # checks the arguments",
        "self.release(1, 2)  # checks the arguments",
        "a release that is made only to have its arguments checked: any dimension and number of rounds do",
    ),
    (
        "aggregation/payloads.py",
        "if copies and log_equal + math.log(math.comb(len(payloads), 2)) < BY_CHANCE:",
        "if copies and log_equal + math.log(math.comb(len(payloads), 2)) <= BY_CHANCE:",
        "the log probability is no multiple of log 2 that float64 holds: it is never equal",
    ),
    (
        "aggregation/secagg/unmasking.py",
        "yield (-1 if n < client else +1), secret",
        "yield (- 2 if n < client else +1), secret",
        "only the sign is read",
    ),
    (
        "training/schedule.py",
        "if most is not None and places > (most - 1) * config.population:",
        "if most is not None and places is (most - 1) * config.population:",
        "a short cut: drawing all cohorts finds the same number, for no fewer participations would do",
    ),
    (
        "channels/wire/payload.py",
        "if channel.bits > 8 or channel.levels < 1 << channel.bits:",
        "if channel.bits > 8 or channel.levels is not 1 << channel.bits:",
        "at most 8 bits: Python keeps one object for each of these integers, so `is` compares them",
    ),
    (
        "channels/wire/kernel.py",
        "for k in range(codes.shape[0]):",
        "for k in range(codes.shape[ -1]):",
        "codes are one-dimensional: the last axis is the first",
    ),
    (
        "privacy/accounting/composition/loss.py",
        "for turn in range(60):",
        "for turn in range( 61):",
        "one more turn of a search: any tilt gives a bound",
    ),
    (
        "privacy/accounting/composition/loss.py",
        "slack = 12 * UNIT * (abs(first) + abs(second) + abs(math.log(integral)) + 1)",
        "slack = 12 * UNIT * (abs(first) + abs(second) + abs(math.log(integral)) + 2)",
        "twelve units more of slack, beside a bound's digits",
    ),
]
"""(file, line before, line after, why): stripped lines, as the runner prints them."""
