"""What the fleets' jobs share: how pings come, and the ping that all of them are brought to."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

POSITION = "vin string, latitude double, longitude double, time double"
ALPHA = f"{POSITION}, obd_codes string"  # with spaces between them
BETA = f"{POSITION}, sequence bigint, obd_codes array<string>"
FIELDS = ("vin", "latitude", "longitude", "time", "fleet", "obd_codes")


def pings(frame: DataFrame, fleet: str) -> DataFrame:
    """Positions that a clock and a map can show, with the name of their fleet and the codes of the diagnosis."""
    on_the_map = F.col("latitude").between(-90, 90) & F.col("longitude").between(-180, 180)
    codes = F.concat_ws(" ", "obd_codes")  # of a text the text itself
    return frame.where(on_the_map).withColumns({"fleet": F.lit(fleet), "obd_codes": codes}).select(*FIELDS)
