"""One local Spark with the settings of every job, for all lines of the list."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compatibility.lab import Lab
from streamops_runtime.local import local_spark
from streamops_runtime.session import STREAMING

NOT_HERE = "spark.sql.streaming.checkpointFileManagerClass"  # writes to an object store only


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with local_spark() as spark:
        for key, value in STREAMING.items():
            if key != NOT_HERE:
                spark.conf.set(key, value)
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        yield Lab(spark, tmp_path_factory.mktemp("lab"))
