"""A source of any kind as a stream of raw records: ``value``, ``timestamp``, and from Kafka ``key``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streamops.model.definitions import Source
from streamops.model.feeds import FOR
from streamops_runtime import csv_tail, http_poll, pull
from streamops_runtime.shipping import LEVELS
from streamops_runtime.sources import kafka_stream

_KINDS = (csv_tail.CsvTailSource, http_poll.HttpSource)


@dataclass(frozen=True)
class Places:
    """Where sources read in this deployment, and what they share with the driver."""

    kafka: str
    places: Mapping[str, str] = field(default_factory=dict)  # source -> topic, directory or URL, set at deploy
    directory: Path = field(default_factory=Path.cwd)  # the driver's: for the counts of faults and levels of loggers
    tasks: int = 1  # that read a batch of files or of a web service, at most

    def faults(self, name: str) -> Path:
        """Where a source counts its faults."""
        return self.directory / f"streamops-faults-{name}.json"


def raw_stream(
    spark: SparkSession,
    name: str,
    source: Source,
    where: Places,
    start: Mapping[str, int] | None = None,
    *,
    reader: str = "",
    live: bool = False,
) -> DataFrame:
    """Raw records of a source.

    Args:
        reader: the stage that reads; of what another stage hands on it gets what its state does not hold.
        live: for a query in real time; only Kafka has that.
        start: partition -> first offset, for a stage without a checkpoint; None for the source's own start.
    """
    place = where.places.get(name, source.address)
    if source.kafka:
        return kafka_stream(spark, name, source, where.kafka, topic=place, start=start, live=live)
    if source.stage:
        raw = kafka_stream(spark, name, source, where.kafka, topic=place, live=live)
        meant = F.get_json_object(F.col("value").cast("string"), f"$.{FOR}")
        return raw.where(meant.isNull() | meant.contains(f'"{reader}"'))
    for module in (pull, csv_tail, http_poll):  # the processes that plan and read batches cannot import the runtime
        cloudpickle.register_pickle_by_value(module)
    for kind in _KINDS:
        spark.dataSource.register(kind)
    chosen = csv_tail.CsvTailSource if source.csv_tail else http_poll.HttpSource
    options = {
        "source": name,
        "place": place,
        "start": source.start,
        "offsets": json.dumps(dict(start or {})),
        "most": str(source.max_per_batch),
        "parts": str(where.tasks),
        "levels": str(where.directory / LEVELS),
        "faults": str(where.faults(name)),
    }
    if source.csv_tail:
        options["files"] = source.csv_tail.files
    if source.http:
        options |= {"limit": str(source.http.limit), "sequence": source.http.sequence}
    return spark.readStream.format(chosen.name()).options(**options).name(name).load()


def read_faults(where: Places, names: list[str]) -> dict[str, int]:
    """What the sources have counted: ``source.fault`` -> how often."""
    found: dict[str, int] = {}
    for name in names:
        try:
            counts = json.loads(where.faults(name).read_text())
        except (OSError, ValueError):
            continue
        found |= {f"{name}.{fault}": int(times) for fault, times in counts.items()}
    return found
