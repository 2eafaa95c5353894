"""Bringing a stage's state into another number of partitions, offline, before its query starts.

Spark reads as many partitions as ``spark.sql.shuffle.partitions`` says, and would silently leave out the rest of the
state; its own offline repartition (4.2, experimental) writes a batch that holds all state in the new partitions.
Killed anywhere, it can be run again: what counts is the last committed batch.
"""

from __future__ import annotations

import logging
import time

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamops.model.errors import UnhealthyError
from streamops.spark import checkpoints
from streamops.store.object_store import ObjectStore

log = logging.getLogger("repartition")


def fit(spark: SparkSession, store: ObjectStore, stage: str, prefix: str, wanted: int) -> bool:
    """Make sure that the state below ``prefix`` lies in ``wanted`` partitions; says whether anything was done.

    Raises:
        UnhealthyError: Spark cannot do that for this state; the checkpoint is as it was for a version with the old
            number.
    """
    found = checkpoints.state_partitions(store, prefix)
    if found is None or found == wanted:
        return False
    began = time.monotonic()
    checkpoints.drop_planned(store, prefix)
    checkpoints.note_partitions(store, prefix, found)
    try:
        # The one way to it in 4.2.
        spark._streamingCheckpointManager.repartition(f"s3a://{store.bucket}/{prefix}", wanted)
    except (PySparkException, Py4JError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "no message")
        raise UnhealthyError(
            f"The state of stage {stage} cannot be brought from {found} into {wanted} partitions: {first[:300]}. "
            f"Publish the version with resources.state_partitions: {found}."
        ) from error
    log.info("%s: state brought from %s into %s partitions in %.1f s", stage, found, wanted, time.monotonic() - began)
    return True
