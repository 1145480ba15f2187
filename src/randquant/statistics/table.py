"""Ask a survey: from records in many forms to a table of answers with its guarantee.

Records and queries are read from values and files. `statistics` asks the records of clients that
are at hand. `SurveyMechanism` has engines offer, account and sum a survey like a round of training.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, final

import numpy as np

from randquant._internal import validate
from randquant._internal.files import parse_toml, read_text
from randquant._internal.formatting import count
from randquant.aggregation.mechanism import (
    MechanismDefaults,
    centred_sums,
    check_cohort_size,
    for_each_payload,
)
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.privacy.accounting.accountant import (
    by_relation,
    other_relation_lines,
    under_other_relation,
)
from randquant.privacy.accounting.release_protocol import Release
from randquant.privacy.guarantee import (
    DEFAULT_TABLE_DELTA,
    UNITS,
    Guarantee,
    Neighboring,
    Trust,
    Unit,
)
from randquant.statistics.query import Answer, Columns, Query, ends
from randquant.statistics.surveys import (
    MAX_VECTOR_VALUE,
    Survey,
    check_clients,
    query_from,
    survey,
    survey_from,
    survey_text,
)

FORMS = (
    "a sequence or mapping of clients, each with its record: a mapping of values, such as "
    '{"age": 40}, or columns of many records: a mapping of arrays, or a table of pandas, polars or '
    "arrow; or one such table, of which each row is a client"
)


def read_frames(clients: Any) -> tuple[list[dict[str, np.ndarray]], bool]:
    """Convert clients' records to columns.

    Args:
        clients: see FORMS.

    Returns:
        (frames, single): each client's columns by name, (n,) each, and False. If every client has
        exactly one record, one frame with a row per client, and True.

    Raises:
        TypeError, ValueError: records have another form, or different columns, or there are no
            clients; the error names the client.
    """
    if _is_table(clients):
        columns = read_columns(clients, "the table")
        if not len(next(iter(columns.values()))):
            raise ValueError("Expected at least one client, a row of the table, got 0 rows.")
        return [columns], True
    if isinstance(clients, Mapping):
        named = [(f"client {name!r}", record) for name, record in clients.items()]
        if named and not any(_is_record(record) for _, record in named):
            raise TypeError(
                f"Expected {FORMS}; got a mapping of {type(named[0][1]).__name__}: put the columns "
                "of one client into a list."
            )
    elif isinstance(clients, Sequence) and not isinstance(clients, str | bytes):
        named = [(f"client {place}", record) for place, record in enumerate(clients)]
    else:
        raise TypeError(f"Expected {FORMS}; got {validate.shown(clients)}.")
    if not named:
        raise ValueError(f"Expected at least one client, got {validate.shown(clients)}.")
    if all(isinstance(record, Mapping) and not any(map(_is_column, record.values()))
           for _, record in named):  # fmt: skip
        return [_stacked(named)], True
    return [read_columns(record, name) for name, record in named], False


def _is_table(value: Any) -> bool:
    sized = hasattr(type(value), "__len__")  # a lazy frame has no length before it is read
    return sized and (hasattr(value, "columns") or hasattr(value, "column_names"))


def _is_record(value: Any) -> bool:
    return isinstance(value, Mapping) or _is_table(value)


def _is_column(value: Any) -> bool:
    single = isinstance(value, str | bytes | Mapping) or getattr(value, "ndim", 1) == 0
    return hasattr(value, "__len__") and not single


def _stacked(named: list[tuple[str, Any]]) -> dict[str, np.ndarray]:
    # Columns with a row per client, of clients with one record each.
    columns = list(named[0][1])
    if not columns:
        raise ValueError(f"Expected records with columns, got an empty record of {named[0][0]}.")
    for name, record in named:
        if record.keys() != named[0][1].keys():
            raise ValueError(
                f"Expected every record to have the columns {', '.join(map(str, columns))}, got "
                f"{', '.join(map(str, record))} of {name}: give None where a value is missing."
            )
    _check_names(columns, named[0][0])
    return {str(column): _array([record[column] for _, record in named]) for column in columns}


def _check_names(columns: list[Any], owner: str) -> None:
    texts = [str(column) for column in columns]
    repeated = [text for text in texts if texts.count(text) > 1]
    if repeated:
        raise ValueError(
            f"Expected columns of different names, got {repeated[0]!r} more than once of {owner}: "
            "rename them, or leave out all but one."
        )


def read_columns(record: Any, name: str) -> dict[str, np.ndarray]:
    """Convert one client's record or table to columns of equal length."""
    if not _is_record(record):
        raise TypeError(f"Expected {FORMS}; got {validate.shown(record)} of {name}.")
    names = list(record) if isinstance(record, Mapping) else list(
        record.column_names if hasattr(record, "column_names") else record.columns
    )  # fmt: skip
    _check_names(names, name)
    columns = {}
    for column in names:
        values = _plain(record[column])
        # One value, as in a record, is a column of one row.
        columns[str(column)] = _array(values if _is_column(values) else [values])
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        raise ValueError(
            "Expected columns of one length, got "
            f"{', '.join(map(str, sorted(lengths))) or 'no columns'} of {name}."
        )
    return columns


def _plain(values: Any) -> Any:
    """Return a table's column as a list of its values.

    An array would have one type for all, which a missing or a single person's value can change:
    then one record would decide how others are read.
    """
    for method in ("to_pylist", "to_list", "to_numpy"):  # arrow; pandas and polars; others
        if hasattr(values, method):
            return getattr(values, method)()
    return values


def _array(values: Any) -> np.ndarray:
    # Each value keeps its own type; masked values are missing.
    if isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray):
        array = values
    else:
        values = [None if value is np.ma.masked else _python_value(value) for value in values]
        # The None at the end keeps NumPy from making a matrix of values that have a length.
        array = np.array([*values, None], dtype=object)[:-1]
    if array.ndim != 1:
        raise ValueError(f"Expected columns of single values, got an array of shape {array.shape}.")
    return array


def _python_value(value: Any) -> Any:
    # Numbers of NumPy or torch become Python's; times of NumPy stay, since item() would return
    # nanoseconds.
    if getattr(value, "ndim", 1) != 0:
        return value
    time = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")
    return value[()] if time else value.item()


def one_of_each(frame: Columns, key: Key) -> dict[str, np.ndarray]:
    """Draw one of a client's records, or make a missing one if it has none: clients count once."""
    count = len(next(iter(frame.values())))
    if not count:
        return {name: np.array([None]) for name in frame}
    row = int(key.words(1)[0]) % count  # uniform but for 2**-64 · count
    return {name: column[row : row + 1] for name, column in frame.items()}


# Records and queries in files: CSV or JSON lines, and TOML.

TABLES = 'queries as tables of TOML, such as [age] with kind = "mean"'

CATEGORY_FIELDS = ("of", "groups", "by")
"""Fields of queries that hold categories: texts, since files of records hold texts."""

DELIMITERS = ",;\t|"

Record = dict[str, str | None]


def read_queries(path: str | Path) -> tuple[dict[str, Query], dict[str, float]]:
    """Read queries and their weights from TOML: one table each, with kind, fields and weight.

    Raises:
        OSError: the file cannot be read.
        ValueError, TypeError: it has another content; the sentence names the query.
    """
    path = Path(path)
    try:
        tables = parse_toml(read_text(path, "queries"))
    except ValueError as error:
        raise ValueError(f"Expected {TABLES}, in {path}, got: {error}.") from None
    if not tables:
        raise ValueError(f"Expected {TABLES}, in {path}, got an empty file.")
    queries, weights = {}, {}
    for name, fields in tables.items():
        if not isinstance(fields, Mapping):
            raise TypeError(f"Expected {TABLES}, in {path}, got {name} = {validate.shown(fields)}.")
        fields = {
            key: _texts(value) if key in CATEGORY_FIELDS else value for key, value in fields.items()
        }
        if "weight" in fields:
            weights[name] = fields.pop("weight")
        try:
            queries[name] = query_from(fields)
        except (ValueError, TypeError) as error:
            raise type(error)(f"Query {name!r}: {error}") from None
    return queries, weights


def read_records(path: str | Path) -> list[Record]:
    """Read records with the same columns as texts; None where a value is missing.

    Args:
        path: of a CSV file whose first line names the columns; the separator of cells is the comma,
            semicolon, tab or bar that this line has most often. Or, if its name ends in .jsonl or
            .ndjson, of a file with one JSON object per line.

    Guarantees:
        How a cell is read depends on no other record. Numbers stay texts as they are written, so
        each query converts them itself, and two different ids never become the same number.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has another content; the sentence names the line.
    """
    path = Path(path)
    text = read_text(path, "records")
    as_json = path.suffix in (".jsonl", ".ndjson")
    records = _json_lines(text, path) if as_json else _csv(text, path)
    if not records:
        raise ValueError(f"Expected records in {path}, got {len(text)} characters without one.")
    # A line with fewer cells than columns, or an object without some, has missing values there.
    columns = dict.fromkeys(column for record in records for column in record)
    return [{column: record.get(column) for column in columns} for record in records]


def by_client(records: Sequence[Record], column: str) -> dict[str, dict[str, list[Any]]]:
    """Group records by client, the value in `column`, and return each client's columns.

    Raises:
        ValueError: there is no such column, or a record has no value in it.
    """
    validate.choice("the column of clients", column, records[0])
    clients: dict[str, list[Record]] = {}
    for place, record in enumerate(records, 1):
        # How far a record may move an answer depends on whose it is: one of nobody has no bound.
        if (name := record[column]) is None:
            raise ValueError(f"Expected a client in {column!r} of record {place}, got no value.")
        clients.setdefault(name, []).append(record)
    return {
        name: {key: [record[key] for record in group] for key in group[0]}
        for name, group in clients.items()
    }


def _csv(text: str, path: Path) -> list[Record]:
    try:
        text = text.removeprefix("\ufeff")
        # By the names of the columns alone: no person's record may change how others are read.
        delimiter = max(DELIMITERS, key=text.partition("\n")[0].count)
        # Strict, since a quote that is never closed would swallow the records that follow.
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(f"Expected CSV in {path}, got: {error}.") from None
    columns = [name.strip() for name in lines[0]] if lines else []
    if len(set(columns)) < len(columns) or "" in columns:
        raise ValueError(
            f"Expected different names of columns in the first line of {path}, got "
            f"{', '.join(map(repr, columns))}."
        )
    for place, line in enumerate(lines, 1):
        if len(line) > len(columns):
            raise ValueError(
                f"Expected {len(columns)} cells in line {place} of {path}, got {len(line)}."
            )
    return [dict(zip(columns, map(_text, line), strict=False)) for line in lines[1:] if line]


def _json_lines(text: str, path: Path) -> list[Record]:
    records = []
    # Not splitlines(): that also splits at U+2028, which a JSON text may hold.
    for place, line in enumerate(text.split("\n"), 1):
        try:
            record = json.loads(line, **AS_WRITTEN) if line.strip() else None
        # Thousands of brackets exhaust the parser's stack: an error of this line, not a traceback.
        except (ValueError, RecursionError):
            record = line
        if record is None:
            continue
        if not isinstance(record, dict) or any(isinstance(v, dict | list) for v in record.values()):
            raise ValueError(
                f"Expected an object of single values in line {place} of {path}, got "
                f"{validate.shown(record)}."
            )
        records.append({column: _text(value) for column, value in record.items()})
    return records


AS_WRITTEN: dict[str, Any] = {"parse_int": str, "parse_float": str, "parse_constant": str}
"""Options of `json.loads` that keep numbers as the texts they are written as."""


def _text(value: Any) -> str | None:
    # A cell without spaces around it; an empty cell is a missing value.
    text = str(value).lower() if isinstance(value, bool) else value
    return text.strip() or None if text is not None else None


def _texts(categories: Any) -> Any:
    # Categories as texts, as `read_records` reads the cells that they are compared with.
    if isinstance(categories, list):
        return [_text(each if isinstance(each, str | bool) else str(each)) for each in categories]
    if isinstance(categories, dict):
        return {column: _texts(known) for column, known in categories.items()}
    return categories


@dataclass(frozen=True, slots=True, eq=False)
class Table(Mapping[str, Answer]):
    """Answers by the names of their queries.

    Attributes:
        answers: by name.
        records: number of records in the sums, which is public.
        clients: number of clients.
        guarantee: of the whole table.
        guarantees: the same by neighbouring relation, for which each is proven.
        terms: public: its queries, amplitudes and noise.
        release: the input of further accounting: `rq.account([table.release, ...], delta)`.
    """

    answers: Mapping[str, Answer]
    records: int
    clients: int
    guarantee: Guarantee
    terms: Survey

    @property
    def release(self) -> Release:
        # To account for it with other tables and runs.
        return self.terms.release

    def __getitem__(self, name: str) -> Answer:
        return self.answers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def guarantees(self) -> Mapping[Neighboring, Guarantee]:
        """The guarantee by neighbouring relation."""
        return by_relation(self.guarantee, self.other_relation)

    @property
    def other_relation(self) -> Guarantee | None:
        """The guarantee under the relation that `guarantee` is not for."""
        return under_other_relation(
            self.guarantee, lambda each: cast(Any, replace)(self.release, neighboring=each)
        )

    def __str__(self) -> str:
        rows = [("", "estimate", "95 % interval", "noise", "sampling")]
        for name, answer in self.items():
            for label, estimate in answer.items():
                # Both ends are rounded outward, so the printed interval contains the computed one.
                rows.append(
                    (f"{name}: {label}", f"{estimate.estimate:.4g}", ends(estimate.interval),
                     f"{estimate.noise_error:.2g}", f"{estimate.sampling_error:.2g}")
                )  # fmt: skip
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in
                       zip(row[1:], widths[1:], strict=True))]).rstrip()
            for row in rows
        ]  # fmt: skip
        size = f"{count(self.records, 'record')} of {count(self.clients, 'client')}"
        guarantees = [f"{size}; {self.guarantee}", *other_relation_lines(self.other_relation)]
        return "\n".join([*lines, *guarantees, *self.terms.notes])


def statistics(
    clients: Any,
    epsilon: float,
    delta: float = DEFAULT_TABLE_DELTA,
    *,
    queries: Mapping[str, Query],
    trust: Literal["central", "aggregate", "local"] = "aggregate",
    unit: Unit = "client",
    noise: Literal["clients", "helper", "parties"] = "clients",
    weights: Mapping[str, float] | None = None,
    seed: int | None = None,
) -> Table:
    """Ask all queries at once, with one guarantee for the whole table.

    Every record becomes one vector of integers that all queries share, bounded by public bounds;
    the sum of all vectors is released with integer noise, and all answers are computed from it.

    Args:
        clients: a sequence or mapping with one entry per client: a mapping of values (one record),
            or columns of many records (a mapping of arrays, or a table of pandas, polars or arrow);
            or one such table, whose rows are the clients. None and NaN are missing values.
        epsilon, delta: the target, in nats, and the probability with which it may fail.
        queries: `Mean`, `Counts`, `Quantiles`, `KaplanMeier`, `LogRank`, `Covariance` and
            `LinearRegression` by name; of the column of that name unless they name another one.
        trust: `aggregate`, each client adds a share of the noise and the server sees only the sum
            (this simulation computes the sum itself); `local`, each client adds all of the noise,
            and the server sees each client's message; `central`, the party that calls this function
            sees the records and is trusted.
        unit: what is protected: a whole `client`, of whose records one is drawn at random, so that
            a client with many records counts once, and one without records as a missing record; or
            one record of a client, an `example` such as a patient of a hospital. Sampling errors
            assume independent records: if patients of one hospital are alike, they are too small.
        noise: who adds it under `aggregate` trust: `clients`; or the `helper` of the secure sum; or
            the `parties`, helper and server each. Then no figure counts on other clients, and the
            noise is Gaussian (docs/theory/statistics.md, Proposition 4).
        weights: by query: by how much its error shall shrink, relative to the errors of the others,
            compared with an equal split of the budget.
        seed: a simulation seed, which can undo the noise; None for a secret key.

    Returns:
        A Table. The number of clients, and for unit='example' the number of records of each, are
        public: neighbouring tables have equally many records. Errors are public too: they name the
        wrong value to the caller.

    Guarantees:
        The noise is drawn from exactly the certified law (up to a distance that delta pays for),
        and the vectors of any two records lie within the certified distance, whatever their values
        are.
        Each interval is built to contain its number in at least 95 of 100 tables. This is checked
        by simulation, over tied, heaped, missing, unbalanced and very few records, and not proven;
        its assumptions are in `docs/statistics.md`.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind; the error names
            the client if it is about a client's records.

    Example:
        >>> from randquant.statistics import Counts, Mean
        >>> people = [{"age": 20 + k % 60, "sex": "fm"[k % 2]} for k in range(6000)]
        >>> queries = {"age": Mean(18, 100), "sex": Counts(["f", "m"])}
        >>> table = statistics(people, epsilon=1, queries=queries)
        >>> table.guarantee.epsilon <= 1, bool(abs(table["age"].estimate - 49.5) < 2)
        (True, True)
    """
    validate.choice("trust", trust, ("central", "aggregate", "local"))
    validate.choice("unit", unit, UNITS)
    frames, single = read_frames(clients)
    key = Key.generate() if seed is None else Key.from_seed(seed)
    if single and unit == "example":
        raise ValueError(
            "Expected clients with columns of many records for unit='example', got one record "
            "each: use unit='client'."
        )
    if not single and unit == "client":
        # One record per client, drawn independently of its values: exchanging the client then
        # exchanges one record (theory/statistics.md, Proposition 1).
        frames = [one_of_each(frame, key.fold_in("record", k)) for k, frame in enumerate(frames)]
    lengths = [len(next(iter(frame.values()))) for frame in frames]
    records = sum(lengths)
    count = records if single else len(frames)
    check_clients(count, trust, noise)
    # By the clients' numbers of records, which are public: neighbouring tables have the same.
    most = 1 if unit == "client" else max(1, *lengths)
    terms = survey(queries, epsilon, delta, trust, count, records, weights, unit, most, noise)
    guarantee = replace(terms.guarantee, simulated=seed is not None)
    answers = noisy_answers(terms, frames, key, count)
    return Table(answers, records, count, guarantee, terms)


def noisy_answers(
    terms: Survey, frames: Sequence[Columns], key: Key, clients: int | None = None
) -> dict[str, Answer]:
    """Answer the queries of a table from a noisy sum, all of whose noise is drawn with a key.

    Args:
        terms: of the table.
        frames: columns of each client, or of all of them together.
        key: a secret, because it determines the noise: with it, the noise can be subtracted.
        clients: number of clients; by default the number of frames.
    """
    count = len(frames) if clients is None else clients
    totals = np.zeros(terms.dimension, np.int64)
    for k, frame in enumerate(frames):
        totals += terms.vector(frame, key.fold_in("client", k))
    # Each share by itself, as in a deployment: this simulation has the deployed noise.
    for k in range(terms.shares(count)):
        totals += terms.share(key.fold_in("share", k))
    return terms.read(totals, sum(len(next(iter(frame.values()))) for frame in frames), count)


# A survey's sum as a mechanism.

DIGEST_NUMBERS = 16
"""Numbers at the end of a vector that identify its survey: all 256 bits of SHA-256 in words of 16
bits. With fewer, a server could search for two surveys of the same digest and have a client answer
one by the terms of the other. They are not sent."""


@final
@dataclass(frozen=True, slots=True, init=False)
class SurveyMechanism(MechanismDefaults):
    """Sends a client's vector of a survey with its share of the noise, modulo a power of two.

    An update is a vector made by `update` from a client's records: only these are within the
    distance that the guarantee assumes, so vectors without the survey's digest are refused.

    Args:
        survey: the terms, or their text as in an offer.

    Guarantees:
        Those of `Survey`, against a server that sees the sum of at least `cohort` clients (one,
        under `local` trust). The party that sets the terms cannot make a client that encoded its
        records by other terms send more than either survey allows: the vector is refused.

    Raises:
        ValueError, TypeError: it is not a survey, or a survey of central trust.

    Example:
        >>> from randquant.statistics import Counts, survey
        >>> queries = {"sex": Counts(["f", "m"])}
        >>> terms = survey(queries, 1.0, 1e-6, "aggregate", clients=50, records=50)
        >>> mechanism = SurveyMechanism(terms)
        >>> update = mechanism.update({"sex": np.array(["f"])}, Key.from_seed(0))
        >>> payloads = [mechanism.encode(update, Key.from_seed(k)) for k in range(50)]
        >>> table = mechanism.table(mechanism.mean(payloads), clients=50, records=50)
        >>> bool(abs(table["sex"]["f"].estimate - 50) < 20)
        True
    """

    survey: str

    channel = None
    clip_norm = None
    from_zero: ClassVar[bool] = True

    def __init__(self, survey: Survey | str) -> None:
        text = survey if isinstance(survey, str) else survey_text(survey)
        # Parsed and written again: equal surveys have equal texts, and so equal digests.
        object.__setattr__(self, "survey", survey_text(survey_from(text)))
        if self.trust == "central":
            raise ValueError(
                "Expected a survey of aggregate or local trust, got central: a trusted server asks "
                "rq.statistics itself."
            )
        validate.whole("a survey's bits", self.terms.bits, low=2, high=32)
        # No integer of a record exceeds the distance of two records. Up to this bound whole numbers
        # are exact in float32; beyond, rounding would move neighbouring sums farther apart than the
        # certified distance (theory/statistics.md, Proposition 1).
        if (largest := self.terms.largest) > 2 * MAX_VECTOR_VALUE:
            raise ValueError(
                f"Expected a survey with vectors up to {2 * MAX_VECTOR_VALUE}, exact in float32, "
                f"got up to {largest:.6g}: lower its amplitudes, or its records of a client."
            )

    @property
    def terms(self) -> Survey:
        return survey_from(self.survey)

    @property
    def _digest(self) -> np.ndarray:
        digest = hashlib.sha256(self.survey.encode()).digest()
        return np.frombuffer(digest, "<u2").astype(np.float32)

    @property
    def trust(self) -> Trust:
        return self.terms.trust

    @property
    def cohort(self) -> int:
        return self.terms.cohort

    @property
    def helper_noise(self) -> bool:
        return self.terms.noise != "clients"

    @property
    def server_noise(self) -> bool:
        return self.terms.noise == "parties"

    @property
    def dimension(self) -> int:
        return self.terms.dimension + DIGEST_NUMBERS

    @property
    def coding(self) -> wire.Format:
        # Remainders modulo a power of two that no sum exceeds.
        return wire.Format.from_facts(1 << self.terms.bits, "survey", self.survey)

    def size(self, dimension: int) -> int:
        # The digest at the end of a vector is checked by the client itself and is not sent.
        return validate.whole("dimension", dimension, low=DIGEST_NUMBERS + 1) - DIGEST_NUMBERS

    def sum_bits(self, dimension: int, clients: int) -> int:
        # The survey's modulus is chosen for its number of records, whatever the clients.
        return self.terms.bits

    def payload_bytes(self, dimension: int) -> int:
        return wire.coded(self.coding, self.size(dimension))

    def update(self, records: Any, key: Key) -> np.ndarray:
        """Encode a client's records without noise: (dimension,) float32, for `encode`.

        A record with a value that a query cannot read counts as missing in that query, with a
        warning: the server chooses the queries, and a client that then did not answer would tell
        it about the value.

        Args:
            records: a mapping of values, or of arrays, or a table, as `statistics` takes them. For
                unit='client' one of them is drawn at random; no records count as a missing one.
            key: of the rounding and of that draw.

        Raises:
            ValueError, TypeError: a column is missing, or there are more records than the survey
                allows a client.
        """
        terms, columns = self.terms, read_columns(records, "a client")
        if terms.unit == "client":
            columns = one_of_each(columns, key.fold_in("record"))
        count = len(next(iter(columns.values())))
        if count > terms.most:
            raise ValueError(
                f"Expected at most {terms.most} records of a client in this survey, got {count}."
            )
        return np.append(terms.vector(columns, key, lenient=True), self._digest).astype(np.float32)

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        """Check the digest, add a share of the noise if clients do, and pack the remainders."""
        if vector.size != self.dimension:
            raise ValueError(
                f"Expected a vector of this survey, {self.dimension} numbers as its update() makes "
                f"them, got {vector.size}."
            )
        # Errors show no numbers of the vector: these are a client's records without noise, and
        # engines may send errors to the server.
        if not np.array_equal(vector[-DIGEST_NUMBERS:], self._digest):
            raise ValueError(
                "Expected a vector of this survey, as its update() makes it, got a vector that "
                "does not end with the digest of its terms: encode records by this offer's terms."
            )
        values = vector[:-DIGEST_NUMBERS]
        whole = values.astype(np.int64)
        if not np.array_equal(whole, values):
            raise ValueError("Expected whole numbers, as a survey's update() makes them.")
        # A key that is used twice would send two vectors with the same noise: their difference
        # would show the difference of the records.
        key.claim()
        if not self.helper_noise:
            whole += self.terms.share(key)
        codes = whole % 2**self.terms.bits
        return wire.pack(self.coding, codes.astype(np.uint32), -DIGEST_NUMBERS)

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        totals = np.zeros(self.size(dimension), np.int64)
        for_each_payload(
            payloads, lambda payload: wire.add(self.coding, payload, totals, -DIGEST_NUMBERS)
        )
        if self.helper_noise:
            if key is None:
                raise TypeError(
                    "Expected a key, got key=None: this survey's noise is not its clients', so "
                    "give mean(payloads, key=rq.Key.generate())."
                )
            for party in range(self.terms.shares(len(payloads))):
                totals += self.party_noise(dimension, key.fold_in("party", party))
        return self.decode(totals % 2**self.terms.bits, len(payloads), dimension)

    def party_variance(self, dimension: int) -> float:
        """Return the parameter of the noise that each party adds to each integer."""
        return self.terms.law.variance

    def party_noise(self, dimension: int, key: Key) -> np.ndarray:
        """Draw one party's noise on a sum: (size,) int64, with a key used for nothing else."""
        key.claim()  # the same noise on two sums would show their difference
        return self.terms.share(key)

    def decode(
        self, totals: np.ndarray, clients: int, dimension: int, bits: int | None = None
    ) -> np.ndarray:
        """Return the mean vector of a sum of remainders, with zeros in place of the digest."""
        check_cohort_size(clients, self.cohort)
        # The sum lies in this range: its remainder determines it.
        centred = centred_sums(totals, self.terms.bits)
        return np.append(centred / clients, np.zeros(DIGEST_NUMBERS)).astype(np.float32)

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        # The distance covers `zero_out` neighbours as well, see `Survey.released`.
        return self.terms.released(rounds, neighboring, "client")

    def example_release(
        self, dimension: int, rounds: int, neighboring: Neighboring, examples: int
    ) -> Release:
        # A sum is not divided by a number of examples, so that one record's distance is the same.
        return self.terms.released(rounds, neighboring, "example")

    def table(self, mean: np.ndarray, clients: int, records: int) -> Table:
        """Compute the answers from the mean of clients' vectors.

        Args:
            mean: (dimension,), from `mean` or from an engine.
            clients: number of clients in the mean.
            records: number of their records together, which is public.
        """
        terms = self.terms
        clients = validate.whole(
            "clients", clients, low=terms.cohort,
            why="a round that failed, or has fewer than its noise counts on, is no table",
        )  # fmt: skip
        records = validate.whole("records", records, low=0)
        totals = np.asarray(mean, np.float64)[:-DIGEST_NUMBERS] * clients
        answers = terms.read(totals, records, clients)
        return Table(answers, records, clients, terms.guarantee, terms)

    def certified(self, dimension: int) -> dict[str, Any]:
        return self.terms.certified(dimension)

    def record(self) -> dict[str, Any]:
        return {"mechanism": "survey", "survey": self.survey}
