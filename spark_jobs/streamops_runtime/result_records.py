"""Results as records of their topic, as Spark writes them."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, IntegralType, StringType, StructType

from streamops.model.definitions import InfluxSink
from streamops.model.errors import DefinitionError
from streamops.model.results import SEPARATOR, mark


def encoded(frame: DataFrame, sink: InfluxSink, epoch: int, run: int) -> DataFrame:
    """Results as records of the topic: ``key`` is the point's time and tags, ``value`` who gives it and its columns.

    After the exchange a partition of the frame is one of the state.
    """
    moment = milliseconds(frame.schema, sink.time)
    fields = [
        moment.alias(name) if name == sink.time else _finite(frame.schema, name).alias(name) for name in frame.columns
    ]
    tags = [F.coalesce(F.col(tag).cast("string"), F.lit("")) for tag in sink.tags]
    key = F.concat_ws(SEPARATOR, moment.cast("string"), *tags)
    who = [F.lit(mark(epoch, run).decode()), F.spark_partition_id().cast("string"), F.lit(" ")]
    value = F.concat(*who, F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}))
    return frame.where(F.col(sink.time).isNotNull()).select(key.alias("key"), value.alias("value"))


def milliseconds(schema: StructType, name: str) -> Column:
    """A column with a point's time as milliseconds since the epoch."""
    integral = isinstance(schema[name].dataType, IntegralType)
    return F.col(name).cast("bigint") if integral else F.unix_millis(F.col(name).cast("timestamp"))


def _finite(schema: StructType, name: str) -> Column:
    """JSON has no number that is not finite, and neither has a point."""
    if not isinstance(schema[name].dataType, DoubleType | FloatType):
        return F.col(name)
    value = F.col(name).cast("double")  # as a row has it: JSON would show fewer digits of a float
    return F.when(~F.isnan(name) & (F.abs(name) != F.lit(float("inf"))), value)


def check_tags(schema: StructType, sink: InfluxSink, why: str) -> None:
    """Make sure that tags are text or whole numbers: anything else Spark and Python write as different texts.

    Args:
        why: begins the message.

    Raises:
        DefinitionError: one is neither.
    """
    for tag in sink.tags:
        if not isinstance(schema[tag].dataType, StringType | IntegralType):
            raise DefinitionError(f"{why} tag {tag} is {schema[tag].dataType.simpleString()}; make it a string.")
