"""What the end of a warm-up leaves behind must not hold up the queries that come after it."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from fresh_job import wait_for
from streamops.clients.kafka import Ledger
from streamops_runtime import warmup

pytestmark = [pytest.mark.stack, pytest.mark.full]
HELD_UP_S = 60.0  # Kafka's producer gives up after 120 s what it cannot send


def test_unsent_results_of_a_removed_topic_hold_up_nobody(stack, spark: SparkSession) -> None:
    """Executors share a producer, and a task waits until all that was given to it is sent."""
    servers, job = stack.kafka_bootstrap_servers, uuid.uuid4().hex[:8]
    practice, real = f"{job}.practice", f"{job}.real"

    def writer(frame: DataFrame, topic: str) -> DataFrameWriter:
        made = frame.select(F.col("id").cast("string").alias("value")).write.format("kafka")
        return made.option("kafka.bootstrap.servers", servers).option("kafka.linger.ms", "5").option("topic", topic)

    def practise() -> None:
        spark.sparkContext.setJobGroup(job, "a warm-up", interruptOnCancel=True)
        with pytest.raises(Exception, match="cancelled"):
            warmup.apart(writer(spark.range(1 << 40, numPartitions=1), practice)).save()

    ledger = Ledger.at(servers)
    try:
        ledger.ensure_topic(practice)
        ledger.ensure_topic(real)
        thread = threading.Thread(target=practise)
        thread.start()
        wait_for(lambda: ledger.end_offsets(practice)["0"] > 10_000, 60, "records of the warm-up")
        ledger.delete_topics(practice)
        time.sleep(0.5)  # while it still writes
        spark.sparkContext.cancelJobGroup(job)
        begun = time.monotonic()
        writer(spark.range(10, numPartitions=1), real).save()
        took = time.monotonic() - begun
        thread.join(180)
        assert ledger.end_offsets(real)["0"] == 10
        assert took < HELD_UP_S
    finally:
        ledger.delete_topics(job)
        ledger.close()
