"""For the code of jobs: sliding windows that cost little."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamops.model.definitions import milliseconds

SIZE_US, SLIDE_US = "streamops.size_us", "streamops.slide_us"


def sliding(panes: DataFrame, pane: str, size: str, slide: str) -> DataFrame:
    """Each row of ``panes`` once for every sliding window that holds its pane, in a column ``window`` to group by.

    It gives the windows of ``F.window(pane, size, slide)``. For that, Spark writes a projection for each window that
    overlaps, 60 for a minute by the second, and compiles them again in each batch.

    Args:
        panes: rows grouped by a tumbling window, with a watermark before the grouping.
        pane: the column of that window, which is left out of the result.
        size, slide: durations such as ``60 seconds``; both are multiples of the pane's length.
    """
    width, step = milliseconds(size) * 1000, milliseconds(slide) * 1000
    first, last = F.unix_micros(f"{pane}.end"), F.unix_micros(f"{pane}.start") + width
    ends = F.sequence(first + F.pmod(-first, F.lit(step)), last, F.lit(step))
    windows = F.transform(
        ends,
        lambda end: F.struct(F.timestamp_micros(end - width).alias("start"), F.timestamp_micros(end).alias("end")),
    )
    kept = [F.col(name) for name in panes.columns if name != pane]
    # Spark's own marks of event time, and what the plan alone would not tell a fingerprint.
    marks = panes.schema[pane].metadata | {SIZE_US: width, SLIDE_US: step}
    marked = F.col("window").alias("window", metadata=marks)
    return panes.select(*kept, F.explode(windows).alias("window")).select(*kept, marked)
