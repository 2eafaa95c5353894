"""Read the state of checkpoints that lie on this machine: ``python -m streamops_runtime.state QUERY``.

QUERY is a ``streamops.snapshots.state.Query`` as JSON. Prints JSON lines: rows, counts, what is refused or cannot be
read, and at the end ``{"done": true}``.

Spark's state data source (``statestore``) needs to be told, in 4.2:

- ``stateStore.checkpointFormatVersion`` 2: without it, it looks for ``VERSION.changelog`` instead of the files with
  the unique ids that the commit log names;
- the provider, and in how many partitions the state lies: the offset log of a query that was started with named
  sources leaves the latter out, at least in the batches of its first start;
- that there is a StateStoreCoordinator, to which each RocksDB reports: it comes to be with the query manager only.

Given these, a checkpoint that holds the last committed batch only, with one full version and the changelogs after it,
is enough: the lineage in the last changelog leads to the full version.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from streamops.model.errors import RefusedError
from streamops.snapshots.state import Choice, Count, Place, Query, StateStore, choose
from streamops_runtime.local import local_spark
from streamops_runtime.session import STREAMING

PARTITION = "partition_id"  # the data source's column
NO_VERDICT = ("OutOfMemoryError", "No space left on device")  # of this machine, not of the state


def configure(spark: SparkSession, partitions: int) -> None:
    """Set what the state data source must be told, for state in so many partitions."""
    for key, value in STREAMING.items():
        if ".stateStore." in key or ".offsetLog." in key or ".queryEvolution." in key:
            spark.conf.set(key, value)
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    spark.conf.set("spark.sql.streaming.internal.stateStore.partitions", str(partitions))
    _ = spark.streams.active  # makes the query manager, and with it the StateStoreCoordinator


def stores(spark: SparkSession, place: Place) -> list[StateStore]:
    """All state stores of a stage, in Spark's order."""
    found = spark.read.format("state-metadata").load(place.directory)
    return [
        StateStore(
            operator=row.operatorId,
            operator_name=row.operatorName,
            name=row.stateStoreName,
            variables=_variables(row.operatorProperties),
        )
        for row in found.orderBy("operatorId", "stateStoreName").collect()
    ]


def frame(spark: SparkSession, place: Place, store: StateStore, variable: str | None) -> DataFrame:
    """The rows of one state store, or of one of its variables."""
    reader = spark.read.format("statestore").option("operatorId", store.operator).option("storeName", store.name)
    if variable is not None:
        reader = reader.option("stateVarName", variable)
    return reader.option("batchId", place.batch).load(place.directory)


def matching(found: DataFrame, choice: Choice) -> DataFrame:
    """Those with the key columns that are asked for. Raises RefusedError: no such column, or no value of its type."""
    for name, text in choice.keys:
        column, kind = _key_column(found, name)
        value = F.lit(text).try_cast(kind)
        if found.sparkSession.range(1).select(value.isNull()).head()[0]:
            raise RefusedError(f"--key {name}={text}: {text!r} is no {kind.simpleString()}.")
        found = found.where(column == value)
    return found


def rows(spark: SparkSession, place: Place, choice: Choice) -> Iterator[dict[str, Any]]:
    """What ``streamops.snapshots.state.rows`` expects, line by line."""
    store = choose(stores(spark, place), choice)
    found = matching(frame(spark, place, store, choice.variable), choice)
    shown = [name for name in found.columns if name != PARTITION]
    as_json = _json(*shown, F.col(PARTITION).alias("partition"))
    total = found.count()
    if choice.limit and total:
        # by key, so that the same question has the same answer; only so many rows are kept while sorting
        first = found.select(as_json.alias("row")).orderBy("row").limit(choice.limit)
        for row in first.collect():
            yield {"row": json.loads(row.row)}
    yield {"store": store.model_dump(), "total": total}


def differences(spark: SparkSession, first: Place, second: Place, choice: Choice) -> Iterator[dict[str, Any]]:
    """What ``streamops.snapshots.state.differences`` expects, line by line."""
    store = choose(stores(spark, first), choice)
    choose(stores(spark, second), choice)
    sides = []
    for name, place in (("first", first), ("second", second)):
        configure(spark, place.partitions)  # of which the two may have different numbers
        found = matching(frame(spark, place, store, choice.variable), choice)
        kept = [column for column in found.columns if column not in ("key", PARTITION)]
        # Lists and maps have several rows for a key.
        by_key = found.groupBy(_json("key").alias("key")).agg(F.sort_array(F.collect_list(_json(*kept))).alias(name))
        sides.append(by_key.localCheckpoint())
    both = sides[0].join(sides[1], "key", "full_outer")
    one, two = F.col("first"), F.col("second")
    differs = ~one.eqNullSafe(two)
    told = both.agg(
        F.count_if(~differs).alias("equal"),
        F.count_if(differs & one.isNotNull() & two.isNotNull()).alias("changed"),
        F.count_if(two.isNull()).alias("only_first"),
        F.count_if(one.isNull()).alias("only_second"),
    ).head()
    for row in both.where(differs).orderBy("key").limit(choice.limit).collect() if choice.limit else ():
        kept = {name: [json.loads(text) for text in row[name]] if row[name] else None for name in ("first", "second")}
        yield {"row": {"key": json.loads(row["key"])["key"], **kept}}
    yield {"store": store.model_dump(), **told.asDict()}


def _json(*columns: str | Column) -> Column:
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})


def counts(spark: SparkSession, place: Place) -> Iterator[dict[str, Any]]:
    """What ``streamops.snapshots.state.count`` expects: every partition of every store, also those without a row."""
    for store in stores(spark, place):
        for variable in store.variables or (None,):
            found = frame(spark, place, store, variable)
            # Every column is looked at: a count alone would not decode a row.
            looked_at = found.groupBy(PARTITION).agg(
                F.count("*").alias("n"), F.bit_xor(F.xxhash64(F.to_json(F.struct("*"))))
            )
            held = {row[PARTITION]: row.n for row in looked_at.collect()}
            for partition in range(place.partitions):
                counted = Count(
                    stage=place.stage,
                    operator=store.operator,
                    operator_name=store.operator_name,
                    store=store.name,
                    variable=variable,
                    partition=partition,
                    rows=held.get(partition, 0),
                )
                yield {"count": counted.model_dump()}


def _key_column(found: DataFrame, name: str) -> tuple[Column, DataType]:
    """A column of the key, or a field of one: ``k``, ``window.start``."""
    kind: DataType = found.schema["key"].dataType
    column = F.col("key")
    for part in [name] if isinstance(kind, StructType) and name in kind.fieldNames() else name.split("."):
        if not isinstance(kind, StructType) or part not in kind.fieldNames():
            raise RefusedError(
                f"The key has no column {name!r}; it has {', '.join(_leaves(found.schema['key'].dataType))}."
            )
        column, kind = column.getField(part), kind[part].dataType
    if isinstance(kind, StructType):
        raise RefusedError(
            f"The key column {name!r} has fields; choose {', '.join(f'{name}.{leaf}' for leaf in _leaves(kind))}."
        )
    return column, kind


def _leaves(kind: DataType) -> list[str]:
    if not isinstance(kind, StructType):
        return []
    return [
        f"{field.name}.{leaf}" if leaf else field.name
        for field in kind.fields
        for leaf in _leaves(field.dataType) or [""]
    ]


def _variables(properties: str | None) -> tuple[str, ...]:
    """The state variables in an operator's properties; only transformWithState has any."""
    described = json.loads(properties) if properties else {}
    found = described.get("stateVariables", [])
    return tuple(sorted(item["stateName"] for item in (json.loads(found) if isinstance(found, str) else found)))


def _reason(error: BaseException) -> str:
    """The first line that says what is wrong, not which call failed."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    wanted = [line for line in lines if not line.startswith(("An error occurred while calling", "at "))]
    causes = [line.removeprefix("Caused by: ") for line in wanted if line.startswith("Caused by: ")]
    return (causes[-1:] or wanted[:1] or [type(error).__name__])[0][:500]


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _answered(spark: SparkSession, query: Query) -> Iterator[tuple[Place, Iterator[dict[str, Any]]]]:
    """What is answered of each place."""
    if query.kind == "differences":
        first, second = query.places
        yield first, differences(spark, first, second, query.choice)
        return
    for place in query.places:
        yield place, rows(spark, place, query.choice) if query.kind == "rows" else counts(spark, place)


def main(arguments: list[str]) -> int:
    """Entry point. Exit code 0 also when state cannot be read: that is an answer."""
    query = Query.model_validate_json(arguments[0])
    with local_spark() as spark:
        for place, answers in _answered(spark, query):
            configure(spark, place.partitions)
            try:
                for answer in answers:
                    _say(answer)
            except RefusedError as error:
                _say({"stage": place.stage, "refused": str(error)})
            except (PySparkException, Py4JError) as error:
                if any(text in str(error) for text in NO_VERDICT):
                    print(_reason(error), file=sys.stderr)
                    return 1
                _say({"stage": place.stage, "problem": _reason(error)})
    _say({"done": True})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
