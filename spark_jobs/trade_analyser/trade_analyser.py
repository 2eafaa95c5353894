"""Averages and volume of trades. Function name = stage, positional arguments = sources, keyword-only = params.

Prices are integer cents, so that a sum does not depend on the order of its parts; times are window ends.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from streamops_runtime.windows import sliding


def avg_1s(trades: DataFrame, *, delay: str) -> DataFrame:
    """Average price per symbol and second: ``symbol``, ``cents``, ``trades``, ``value`` (cents) and ``time``."""
    return (
        trades.withWatermark("time", delay)
        .groupBy(F.window("time", "1 second"), "symbol")
        .agg(F.sum("price").alias("cents"), F.count("*").alias("trades"))
        .select("symbol", "cents", "trades", average("cents", "trades"), F.col("window.end").alias("time"))
    )


def avg_1m(trades: DataFrame, *, delay: str) -> DataFrame:
    """Average price per symbol over the last minute, every second.

    Trades are summed in panes of a second first: a window then takes 60 rows instead of every trade.
    """
    panes = (
        trades.withWatermark("time", delay)
        .groupBy(F.window("time", "1 second").alias("pane"), "symbol")
        .agg(F.sum("price").alias("cents"), F.count("*").alias("trades"))
    )
    return (
        sliding(panes, "pane", size="60 seconds", slide="1 second")
        .groupBy("window", "symbol")
        .agg(F.sum("cents").alias("cents"), F.sum("trades").alias("trades"))
        .select("symbol", average("cents", "trades"), F.col("window.end").alias("time"))
    )


def vol_1s(trades: DataFrame, *, delay: str) -> DataFrame:
    """Shares traded per second over all symbols: ``value`` and ``time``."""
    return (
        trades.withWatermark("time", delay)
        .groupBy(F.window("time", "1 second"))
        .agg(F.sum("quantity").alias("value"))
        .select("value", F.col("window.end").alias("time"))
    )


def average(total: str, count: str) -> Column:
    """Column ``value``: a sum over a count."""
    return (F.col(total).cast("double") / F.col(count)).alias("value")
