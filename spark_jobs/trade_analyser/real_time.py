"""The same results in real time. ``avg_1s`` alone reads the trades: the others are made of what it hands on."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamops_runtime.windows import sliding
from trade_analyser import average

CORRECTED = "30 seconds"  # how late a correction of a second may come and still count


def avg_1s(trades: DataFrame, *, delay: str) -> DataFrame:
    """As before, and what the others need of each second: ``symbol``, ``cents``, ``trades``, ``shares``, ``value``."""
    return (
        trades.withWatermark("time", delay)
        .groupBy(F.window("time", "1 second"), "symbol")
        .agg(F.sum("price").alias("cents"), F.count("*").alias("trades"), F.sum("quantity").alias("shares"))
        .select("symbol", "cents", "trades", "shares", average("cents", "trades"), F.col("window.end").alias("time"))
    )


def avg_1m(panes: DataFrame) -> DataFrame:
    """Average price per symbol over the last minute, every second, from sums and counts of each second."""
    of = within(panes).withColumn("pane", F.window("time", "1 second")).select("pane", "symbol", "cents", "trades")
    return (
        sliding(of, "pane", size="60 seconds", slide="1 second")
        .groupBy("window", "symbol")
        .agg(F.sum("cents").alias("cents"), F.sum("trades").alias("trades"))
        .select("symbol", average("cents", "trades"), F.col("window.end").alias("time"))
    )


def vol_1s(panes: DataFrame) -> DataFrame:
    """Shares traded per second over all symbols, from the shares of each."""
    return (
        within(panes)
        .groupBy(F.window("time", "1 second"))
        .agg(F.sum("shares").alias("value"))
        .select("value", F.col("window.end").alias("time"))
    )


def within(panes: DataFrame) -> DataFrame:
    """Each pane at a time within its second; it comes with the second's end."""
    return panes.withColumn("time", F.col("time") - F.expr("INTERVAL 1 MILLISECOND")).withWatermark("time", CORRECTED)
