"""The same results in real time: the average of a minute is made of what ``avg_1s`` hands on, not of each trade."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from trade_analyser import average, avg_1s, vol_1s

__all__ = ["avg_1m", "avg_1s", "vol_1s"]

CORRECTED = "30 seconds"  # how late a correction of a second may come and still count


def avg_1m(panes: DataFrame) -> DataFrame:
    """Average price per symbol over the last minute, every second, from sums and counts of each second."""
    within = panes.withColumn("time", F.col("time") - F.expr("INTERVAL 1 MILLISECOND"))  # a pane stands at its end
    return (
        within.withWatermark("time", CORRECTED)
        .groupBy(F.window("time", "60 seconds", "1 second"), "symbol")
        .agg(F.sum("cents").alias("cents"), F.sum("trades").alias("trades"))
        .select("symbol", average("cents", "trades"), F.col("window.end").alias("time"))
    )
