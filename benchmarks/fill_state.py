"""State of any size on local Spark, below a prefix of the object store: ``python -m benchmarks.fill_state``.

``INPUT CHECKPOINT PARTS ROWS FIRST``: writes PARTS files with ROWS rows each (``FIRST`` is the first key), and one
batch for each file into a query with one wide row of state a key. The next call continues from the same checkpoint, so
keys that were there are changed. Connection settings come from the environment.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streamops_runtime.session import STREAMING

ROW_BYTES = 128  # of text in each row of state, which does not compress well


def main(source: str, checkpoint: str, parts: int, rows: int, first: int) -> None:
    """Write the input, and let the query read it to its end."""
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
    for key, value in STREAMING.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false")
    builder = builder.config("spark.hadoop.fs.s3a.path.style.access", "true")
    builder = builder.config("spark.hadoop.fs.s3a.connection.ssl.enabled", "false")
    builder = builder.config("spark.hadoop.fs.s3a.endpoint.region", "us-east-1")
    spark = builder.config("spark.hadoop.fs.s3a.endpoint", os.environ["S3_ENDPOINT"]).getOrCreate()
    for part in range(parts):
        keys = spark.range(first + part * rows, first + (part + 1) * rows, numPartitions=1)
        text = F.sha2(F.concat_ws("-", "id", F.lit(os.urandom(8).hex())), 512)
        keys.select("id", text.alias("text")).write.mode("append").parquet(source)
    reader = spark.readStream.schema("id long, text string").option("maxFilesPerTrigger", 1)
    changed = reader.name("changed").parquet(source)
    held = changed.groupBy("id").agg(F.max("text").alias("text"), F.count("*").alias("times"))
    writer = held.writeStream.outputMode("update").format("noop").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(text) for text in sys.argv[3:6]))
