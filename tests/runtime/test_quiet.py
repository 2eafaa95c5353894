"""What Spark would say for every batch."""

from __future__ import annotations

from pyspark.sql import SparkSession

from streamops_runtime.shipping import TOO_OFTEN, quiet


def test_batches_that_take_longer_than_their_interval_are_not_said_one_by_one(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    spark.sparkContext.setLogLevel("WARN")
    jvm.java.lang.Class.forName(TOO_OFTEN)  # Spark has moved it between versions
    logger = jvm.org.apache.logging.log4j.LogManager.getLogger(TOO_OFTEN)
    assert logger.isWarnEnabled()
    quiet(spark.sparkContext)
    assert not logger.isWarnEnabled()
    assert logger.isErrorEnabled()
    assert jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark.sql.execution.streaming").isWarnEnabled()
