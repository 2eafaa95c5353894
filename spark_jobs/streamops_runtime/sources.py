"""Sources as DataFrames of the declared schema, with what would harm the job rejected and counted.

Rejected before any watermark: values that are not a JSON object of the schema with every column present
(*malformed*), and events dated more than ``max_ahead`` after their Kafka record (*ahead*). One event dated
years ahead would otherwise silence the job for good.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from streamops.model.definitions import SCHEMA_CONSTANT, Kafka, Source, milliseconds
from streamops.model.errors import DefinitionError

_RAW = "__streamops"
_CORRUPT = "__streamops_corrupt"
_FARTHEST_US = 1 << 62  # beyond any clock, and safe to add to


def schema_of(name: str, source: Source) -> StructType:
    """The declared schema, checked. Raises DefinitionError."""
    try:
        schema = StructType.fromDDL(_declared(source.fields))
    except (PySparkException, ValueError) as error:
        message = str(error).strip().splitlines()[0][:200]
        raise DefinitionError(
            f"sources.{name}.schema is not a schema like 'page string, time timestamp': {message}"
        ) from None
    for field, column in (("key", source.key), ("value", source.value)):
        if column is not None and (column not in schema.names or schema[column].dataType != StringType()):
            raise DefinitionError(f"sources.{name}.{field}: schema has no column {column} of type string; add it.")
    if source.value is not None and set(schema.names) != {source.value, *([source.key] if source.key else [])}:
        raise DefinitionError(
            f"sources.{name}.value: {source.value} takes the value as it is, so schema can have no other columns "
            f"but the key; it has {', '.join(schema.names)}."
        )
    if source.event_time is not None:
        if source.event_time not in schema.names:
            raise DefinitionError(
                f"sources.{name}.event_time: there is no column {source.event_time}; "
                f"there is {', '.join(schema.names)}."
            )
        kind = schema[source.event_time].dataType
        if not isinstance(kind, IntegralType | FloatType | DoubleType | TimestampType | TimestampNTZType):
            raise DefinitionError(
                f"sources.{name}.event_time: {source.event_time} is {kind.simpleString()}; "
                "it must be a timestamp or a number of milliseconds or seconds."
            )
    return schema


def _declared(text: str) -> str:
    """The schema itself, or what the constant of the shared library that it names says."""
    found = SCHEMA_CONSTANT.fullmatch(text.strip())
    if found is None:
        return text
    try:
        return str(getattr(importlib.import_module(found[1]), found[2]))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{text} is not there ({error}); it names a constant of the job's library") from None


# Spark's reader asks the broker for the partition's first and last offset before every poll, and throws away what
# was fetched ahead. With the consumer's default of 500 records a poll, that costs more than reading does.
FETCH = {"kafka.max.poll.records": "10000", "kafka.max.partition.fetch.bytes": str(4 << 20)}


def kafka_stream(
    spark: SparkSession,
    name: str,
    source: Source,
    servers: str,
    *,
    topic: str | None = None,
    start: Mapping[str, int] | None = None,
    live: bool = False,
) -> DataFrame:
    """Kafka records as a stream of raw rows.

    Args:
        live: for a query in real time, in which each partition has one task that takes records as they come.
        servers: of the installation's broker.
        topic: read instead of the definition's.
        start: partition -> first offset, for a stage without a checkpoint; None for the source's own start.
    """
    of = Kafka.at(topic or source.address)
    topic = of.topic
    offsets = json.dumps({topic: dict(start)}) if start else source.start
    # Catching up, a topic's partition is read by several tasks at once.
    batch = {} if live else {"maxOffsetsPerTrigger": str(source.max_per_batch), "maxRecordsPerPartition": "100000"}
    own = {"kafka.isolation.level": "read_committed"} if source.stage else {}
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", of.servers or servers)
        .option("subscribe", topic)
        .option("startingOffsets", offsets)
        .option("failOnDataLoss", "true")
        .option("groupIdPrefix", f"streamops-{name}")
        .options(**FETCH, **batch, **own)
        .name(name)
        .load()
    )


PLACE = f"{_RAW}_place"


def accepted(name: str, source: Source, raw: DataFrame, *, count: bool = True, placed: bool = False) -> DataFrame:
    """Columns ``value`` and ``timestamp`` of records as rows of the declared schema, event time as timestamp.

    Args:
        placed: whether the records have a column ``PLACE``, which their rows then have as well.
    """
    schema = schema_of(name, source)
    value = F.col("value").cast("string")
    key = [F.col("key").cast("string").alias(source.key)] if source.key else []
    along = [F.col(PLACE)] if placed else []
    columns = [*key, F.col("timestamp").alias(f"{_RAW}_at"), *along]
    whole = F.lit(True)
    if source.value:
        rows = raw.select(value.alias(source.value), *columns)
    elif source.csv_tail:
        rows = raw.select(_from_csv(value, schema).alias(_RAW), *columns).select(f"{_RAW}.*", f"{_RAW}_at", *along)
        whole = F.col(_CORRUPT).isNull()
    else:
        held = StructType([field for field in schema.fields if field.name != source.key])
        rows = raw.select(F.from_json(value, held).alias(_RAW), *columns)
        rows = rows.select(f"{_RAW}.*", *_key_names(source), f"{_RAW}_at", *along)
    for column in schema.names:
        whole = whole & F.col(_quoted(column)).isNotNull()
    in_time: Column = F.lit(True)
    columns = [F.col(_quoted(column)) for column in schema.names]
    if source.event_time is not None:
        moment, dated, in_time = _times(source, schema)
        whole = whole & dated
        place = schema.names.index(source.event_time)
        columns[place] = moment.alias(source.event_time)
    if count:
        rows = rows.observe(
            observation(name),
            F.count_if(~whole).alias("malformed"),
            F.count_if(whole & ~in_time).alias("ahead"),
        )
    return rows.where(whole & in_time).select(*columns, *along)


def _key_names(source: Source) -> list[str]:
    """The column that holds the record's key, if one does."""
    return [_quoted(source.key)] if source.key else []


def _from_csv(value: Column, schema: StructType) -> Column:
    """A line as a struct; a line with too few or too many columns, or a wrong one, is kept whole as corrupt.

    Nothing between two commas is null, and "" is an empty text: Spark takes both for null, unless null is written as
    something that no line holds.
    """
    wide = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    options = {"columnNameOfCorruptRecord": _CORRUPT, "mode": "PERMISSIVE", "nullValue": "\0"}
    return F.from_csv(value, _ddl(wide), options)


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields)


def observation(source: str) -> str:
    """Name under which a source's counts stand in a query's progress."""
    return f"streamops_{source}"


def _times(source: Source, schema: StructType) -> tuple[Column, Column, Column]:
    """The event time as timestamp, whether a clock can show it, and whether it is not too far ahead."""
    assert source.event_time is not None
    kind = schema[source.event_time].dataType
    column = F.col(_quoted(source.event_time))
    ahead_us = milliseconds(source.max_ahead) * 1000
    latest = F.unix_micros(f"{_RAW}_at") + F.lit(ahead_us)
    if isinstance(kind, TimestampType):
        return column, F.lit(True), F.unix_micros(column) <= latest
    if isinstance(kind, TimestampNTZType):
        moment = column.cast("timestamp")
        return moment, F.lit(True), F.unix_micros(moment) <= latest
    scale = 1000 if source.event_time_unit == "milliseconds" else 1_000_000
    # Compared and cut before any arithmetic: a number too large would end the query with an overflow.
    if isinstance(kind, IntegralType):
        limit = _FARTHEST_US // scale
        raw = column.cast("bigint")
        micros = F.least(F.greatest(raw, F.lit(-limit)), F.lit(limit)) * F.lit(scale)
        dated = raw >= F.lit(-limit)
    else:
        number = column.cast("double") * F.lit(float(scale))
        safe = F.when(F.isnan(number), F.lit(0.0)).otherwise(number)
        far = float(_FARTHEST_US)
        micros = F.least(F.greatest(safe, F.lit(-far)), F.lit(far)).cast("bigint")
        dated = ~F.isnan(number)
    return F.timestamp_micros(micros), dated, micros <= latest


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"
