"""Check files of test vectors: python benchmarks/vdaf_vectors.py FILE...

Files are those of draft-irtf-cfrg-vdaf, annex "Test Vectors", by their names:
Prio3SumVecWithMultiproof_n.json, whose number of proofs follows from the length of the leader's
share, and XofTurboShake128.json. Every operation of a file is run in its order, on the file's own
messages: it must give the file's bytes, or fail where the file says so. One line a file; the exit
status is 1 if any fails. A file of an unknown type, or one that cannot be read, counts as failed,
and its line says that nothing was checked. So does one that lacks a field of the annex's schema, or
whose operations are not those of the schema, each once.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from randquant.secure_sums import (
    Field64,
    Prio3,
    SumVec,
    XofTurboShake128,
    decode_input_share,
    decode_public_share,
    decode_verifier_share,
    encode_input_share,
    encode_public_share,
    encode_verifier_share,
)

TYPE = "Prio3SumVecWithMultiproof"
"""The draft's name of what proves codes: SumVec over Field64, with three proofs."""

VECTOR_FIELDS = {
    "agg_param", "agg_result", "agg_shares", "ctx", "operations", "reports", "shares", "verify_key",
}  # fmt: skip
REPORT_FIELDS = {
    "input_shares", "measurement", "nonce", "out_shares", "public_share", "rand",
    "verifier_messages", "verifier_shares",
}  # fmt: skip
OPERATION_FIELDS: dict[str, set[str]] = {
    "shard": {"report_index"},
    "verify_init": {"report_index", "aggregator_id"},
    "verifier_shares_to_message": {"report_index", "round"},
    "verify_next": {"report_index", "aggregator_id", "round"},
    "aggregate": {"aggregator_id"},
    "unshard": set(),
}


class UnknownTypeError(Exception):
    """A file of a type that is not implemented."""


class Differs(Exception):
    """An operation gives something else than the file says."""


def prio3_of(kind: str, vector: dict[str, Any]) -> Prio3:
    """The instance that a file is of."""
    if kind != TYPE:
        raise UnknownTypeError(kind)
    parameters = (vector[name] for name in ("length", "max_measurement", "chunk_length"))
    valid = SumVec(Field64, *parameters)
    # The draft's private identifier of this type.
    return Prio3(valid, 0xFFFFFFFF, vector.get("proofs") or stated_proofs(valid, vector) or 3)


def stated_proofs(valid: SumVec, vector: dict[str, Any]) -> int:
    """The number of proofs by the length of the first leader's share; 0 if it fits none."""
    one = Prio3(valid, 0)
    size = len(vector["reports"][0]["input_shares"][0]) // 2 - 32
    elements, rest = divmod(size, one.field.ENCODED_SIZE)
    proofs, beyond = divmod(elements - one.flp.MEAS_LEN, one.flp.PROOF_LEN)
    return 0 if rest or beyond or not 1 <= proofs <= 255 else proofs


def unhex(text: str) -> bytes:
    """Decode hexadecimal digits, as the schema writes them.

    Others are a LookupError: a ValueError is what an operation may have to raise.
    """
    if not re.fullmatch("([0-9a-f]{2})*", text):
        raise LookupError(f"no hexadecimal digits: {text[:40]}")
    return bytes.fromhex(text)


def check_schema(vector: dict[str, Any]) -> None:
    """LookupError unless a file of Prio3 has the schema's fields, and its operations once each."""
    lacking = VECTOR_FIELDS - vector.keys()
    lacking |= {name for report in vector["reports"] for name in REPORT_FIELDS - report.keys()}
    if lacking:
        raise LookupError(f"no {', '.join(sorted(lacking))}")
    if vector["agg_param"]:
        raise LookupError("an aggregation parameter, which Prio3 has not")
    for i, operation in enumerate(vector["operations"]):
        name, last_round = operation["operation"], int(operation["operation"] == "verify_next")
        fields, wanted = operation.keys() - {"operation", "success"}, OPERATION_FIELDS[name]
        if not wanted <= fields <= wanted | {"round"}:
            raise LookupError(f"{name} with {', '.join(sorted(fields))}")
        if operation.get("round", last_round) != last_round:
            raise LookupError(f"{name} in round {operation['round']}, of one")
        if operation in vector["operations"][:i]:
            raise LookupError(f"{name} twice")


class Run:
    """The operations of one file; each returns what the file should say, with what it says."""

    def __init__(self, kind: str, vector: dict[str, Any]) -> None:
        self.prio3, self.vector = prio3_of(kind, vector), vector
        self.ctx = unhex(vector["ctx"])
        self.verify_key = unhex(vector["verify_key"])
        self.states: dict[tuple[int, int], Any] = {}
        self.ended: set[int] = set()  # reports of which an operation has failed, as it should

    def shard(self, report: dict, **_: Any) -> tuple[Any, Any]:
        nonce, rand = unhex(report["nonce"]), unhex(report["rand"])
        public, shares = self.prio3.shard(self.ctx, report["measurement"], nonce, rand)
        encoded = [encode_input_share(self.prio3, each).hex() for each in shares]
        wanted = report["public_share"], report["input_shares"]
        return (encode_public_share(public).hex(), encoded), wanted

    def verify_init(
        self, report: dict, index: int, aggregator_id: int, **_: Any
    ) -> tuple[Any, Any]:
        public = unhex(report["public_share"])
        share = unhex(report["input_shares"][aggregator_id])
        state, verifier = self.prio3.verify_init(
            self.verify_key, self.ctx, aggregator_id, unhex(report["nonce"]),
            decode_public_share(self.prio3, public),
            decode_input_share(self.prio3, aggregator_id, share),
        )  # fmt: skip
        self.states[index, aggregator_id] = state
        encoded = encode_verifier_share(self.prio3, verifier).hex()
        return encoded, report["verifier_shares"][0][aggregator_id]

    def verifier_shares_to_message(
        self, report: dict, round_: int, **_: Any
    ) -> tuple[Any, Callable[[], Any]]:
        shares = [
            decode_verifier_share(self.prio3, unhex(each))
            for each in report["verifier_shares"][round_]
        ]
        message = self.prio3.verifier_shares_to_message(self.ctx, shares)
        return message.hex(), lambda: report["verifier_messages"][round_]

    def verify_next(
        self, report: dict, index: int, round_: int, aggregator_id: int, **_: Any
    ) -> tuple[Any, Callable[[], Any]]:
        message = unhex(report["verifier_messages"][round_ - 1])
        out_share = self.prio3.verify_next(self.states[index, aggregator_id], message)
        found = Field64.encode_vec(out_share).hex()
        return found, lambda: "".join(report["out_shares"][aggregator_id])

    def aggregate(self, aggregator_id: int, **_: Any) -> tuple[Any, Any]:
        total = self.prio3.agg_init()
        reports = self.vector["reports"]
        for report in (each for index, each in enumerate(reports) if index not in self.ended):
            share = Field64.decode_vec(unhex("".join(report["out_shares"][aggregator_id])))
            total = self.prio3.agg_update(total, share)
        found = Field64.encode_vec(total).hex()
        return found, self.vector["agg_shares"][aggregator_id]

    def unshard(self, **_: Any) -> tuple[Any, Any]:
        encoded = [unhex(each) for each in self.vector["agg_shares"]]
        total = Field64.vec_add(*map(Field64.decode_vec, encoded))
        return Field64.integers(total), self.vector["agg_result"]

    def operate(self, operation: dict[str, Any]) -> None:
        """Run one operation; Differs unless it does what the file says."""
        step: Callable[..., tuple[Any, Any]] = getattr(self, operation["operation"])
        index = operation.get("report_index", 0)
        given = {
            "report": self.vector["reports"][index], "index": index,
            "round_": operation.get("round", 0), "aggregator_id": operation.get("aggregator_id", 0),
        }  # fmt: skip
        name = f"{operation['operation']} of report {index}"
        try:
            found, wanted = step(**given)
        except ValueError as error:
            if operation["success"]:
                raise Differs(f"{name} fails: {error}") from error
            self.ended.add(index)
            return
        if not operation["success"]:
            raise Differs(f"{name} does not fail")
        if found != (wanted() if callable(wanted) else wanted):
            raise Differs(f"{name} gives something else")


def check_xof(vector: dict[str, Any]) -> int:
    """The file of the XOF: a seed, and vectors of elements."""
    names = ("seed", "dst", "binder")
    seed, dst, binder = (unhex(vector[name]) for name in names)
    found = {"derived_seed": XofTurboShake128.derive_seed(seed, dst, binder)}
    # Elements of Field128 are 16 bytes of the stream each, unless one of them is not below the
    # modulus: a chance of 2**-59 for each, that of a file to fail which is right.
    stream = XofTurboShake128(seed, dst, binder).next(16 * vector["length"])
    expanded = XofTurboShake128.expand_into_vec(Field64, seed, dst, binder, vector["length"])
    found |= {
        "expanded_vec_field128": stream,
        "expanded_vec_field64": bytes(Field64.encode_vec(expanded)),
    }
    stated = {name: text for name, text in vector.items() if name not in (*names, "length")}
    for name, text in stated.items():
        if name not in found or found[name].hex() != text:
            raise Differs(f"{name} is something else")
    if not stated:
        raise LookupError("no output of the XOF")
    return len(stated)


def check(path: Path) -> int:
    """Check one file, and return the number of its operations."""
    vector, kind = json.loads(path.read_text()), path.stem.split("_")[0]
    if kind == "XofTurboShake128":
        return check_xof(vector)
    run = Run(kind, vector)
    check_schema(vector)
    if not vector["operations"]:
        raise ValueError("no operations")
    for operation in vector["operations"]:
        run.operate(operation)
    return len(vector["operations"])


def line(path: Path) -> tuple[bool, str]:
    """Whether a file is right, and its line."""
    try:
        return True, f"ok, {check(path)} operations"
    except UnknownTypeError as error:
        return False, f"FAILED: {error} is not a type that is known here, nothing was checked"
    except Differs as error:
        return False, f"FAILED: {error}"
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        return False, f"FAILED: cannot be read as a file of vectors ({error!r}), not checked"


def main(names: list[str]) -> int:
    results = [line(Path(name)) for name in names]
    for name, (_, text) in zip(names, results, strict=True):
        print(f"{name}: {text}")
    return int(not names or not all(good for good, _ in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
