"""`randquant statistics`: counts, means, quantiles and survival curves, with one guarantee."""

from __future__ import annotations

from typing import Literal

from randquant._internal.declared import Clients, Data, Privacy
from randquant.cli.options import Command, Output, written_certificate, written_page


def run(
    *,
    data: Data[str],
    queries: Data[str],
    epsilon: float,
    delta: Privacy[float] = 1e-6,
    trust: Privacy[Literal["central", "aggregate", "local"]] = "central",
    unit: Privacy[Literal["client", "example"]] = "client",
    noise: Privacy[Literal["clients", "helper", "parties"]] = "clients",
    by_client: Clients[str | None] = None,
    seed: Privacy[int | None] = None,
    output: str | None = None,
    certificate: str | None = None,
) -> Output:
    """Ask all queries of a file at once.

    Args:
        data: records in a file: CSV, an empty cell is a missing value; or JSON lines, if its name
            ends in .jsonl or .ndjson. Ids and categories are texts, as they are written.
        queries: a TOML file with a table for each: its kind, its fields and, if it shall be more
            accurate than others, its weight.
        delta: probability with which epsilon may fail.
        trust: central, you may see this file; aggregate or local, simulate the errors of a table
            whose clients share the noise, or each add all of it.
        unit: what is protected, a client or one example (record) of a client.
        noise: with aggregate trust, who adds the noise: the clients together, the helper of a
            secure sum, or the parties that open it: helper and server, each as much.
        by_client: the column by which records belong to the same client; by default each record is
            a client.
        seed: seed of a simulation, which protects nobody.
    """
    # Imported here, so that `randquant statistics --help` does not wait for these imports.
    from randquant.reports import answers
    from randquant.rounds.statement import certificate_file
    from randquant.statistics.records import by_client as grouped_by
    from randquant.statistics.records import read_queries, read_records
    from randquant.statistics.table import statistics

    records = read_records(data)
    parsed, weights = read_queries(queries)
    table = statistics(
        records if by_client is None else grouped_by(records, by_client),
        epsilon, delta, queries=parsed, weights=weights, trust=trust, unit=unit, noise=noise,
        seed=seed,
    )  # fmt: skip
    # First: it may be refused, and then no answer may be left behind, whose epsilon nobody counts.
    certified = written_certificate(certificate, lambda: certificate_file(table))
    written = written_page(output, lambda: answers.page(table)) + certified
    result = {**answers.as_json(table), "output": output}
    return Output(result, [*str(table).splitlines(), *written])


COMMANDS = {
    "statistics": Command(
        run,
        example="randquant statistics --data patients.csv --queries queries.toml --epsilon 1",
    ),
}
