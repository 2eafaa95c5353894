"""One local Spark for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from streamops_runtime.local import local_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with local_spark() as session:
        yield session
