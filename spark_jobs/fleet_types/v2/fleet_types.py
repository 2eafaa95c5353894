"""What the fleets' jobs share: how pings come, and the ping that all of them are brought to."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

ALPHA = "vin string, latitude double, longitude double, time double"
BETA = f"{ALPHA}, sequence bigint, obd_codes array<string>"
FIELDS = ("vin", "latitude", "longitude", "time", "fleet", "obd_codes")


def pings(frame: DataFrame, fleet: str) -> DataFrame:
    """Positions that a clock and a map can show, with the name of their fleet."""
    on_the_map = F.col("latitude").between(-90, 90) & F.col("longitude").between(-180, 180)
    codes = F.concat_ws(" ", "obd_codes") if "obd_codes" in frame.columns else F.lit("")
    named = frame.where(on_the_map).withColumn("fleet", F.lit(fleet)).withColumn("obd_codes", codes)
    return named.select(*FIELDS)
