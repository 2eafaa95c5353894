"""The ping: what every source of vehicle positions is brought to. Shared code, in a module of its own."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

FIELDS = ("vin", "latitude", "longitude", "time", "fleet")


def pings(frame: DataFrame, fleet: str) -> DataFrame:
    """Positions that a clock and a map can show, with the name of their fleet."""
    on_the_map = F.col("latitude").between(-90, 90) & F.col("longitude").between(-180, 180)
    return frame.where(on_the_map).withColumn("fleet", F.lit(fleet)).select(*FIELDS)
