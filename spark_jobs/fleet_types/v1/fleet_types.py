"""What the fleets' jobs share: how pings come, and the ping that all of them are brought to."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

POSITION = "vin string, latitude double, longitude double, time double"
ALPHA = f"{POSITION}, obd_codes string"  # all that is on a line must be named; the ping leaves the last of it out
BETA = f"{POSITION}, sequence bigint"
FIELDS = ("vin", "latitude", "longitude", "time", "fleet")


def pings(frame: DataFrame, fleet: str) -> DataFrame:
    """Positions that a clock and a map can show, with the name of their fleet."""
    on_the_map = F.col("latitude").between(-90, 90) & F.col("longitude").between(-180, 180)
    return frame.where(on_the_map).withColumn("fleet", F.lit(fleet)).select(*FIELDS)
