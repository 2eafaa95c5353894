"""E10: the number of state partitions changes on kept state, on real Spark over the object store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import object_server, spark_partitions
from fakes.rig import write_env
from stack import builds
from streamops.settings import REPOSITORY, Settings


@pytest.mark.full
def test_state_is_brought_into_more_and_fewer_partitions_and_every_event_counts_once(
    bucket: Settings, tmp_path: Path
) -> None:
    driver, env = object_server.as_job(bucket), tmp_path / "node.env"
    write_env(env, driver)
    places = [str(REPOSITORY / name) for name in ("include", "spark_jobs", "tests")]
    environment = os.environ | {
        "SPARK_HOME": str(builds.spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(places),
        "AWS_ACCESS_KEY_ID": driver.s3_access_key,
        "AWS_SECRET_ACCESS_KEY": driver.s3_secret_key.get_secret_value(),
        "TZ": "UTC",
    }
    command = [sys.executable, spark_partitions.__file__, str(env), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["partitions"] == [2, 4, 4, 1, 1]
    last = max(int(name.split("@")[1]) for name in told["points"])
    due = {name: [value] for name, value in spark_partitions.expected(5).items() if int(name.split("@")[1]) <= last}
    assert told["points"] == due  # nothing missing, nothing doubled, nothing wrong
    assert last == 5 * spark_partitions.ROWS * spark_partitions.EVERY_MS - spark_partitions.WINDOW_MS
