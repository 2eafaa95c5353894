"""Fault 31: a node whose clock is an hour off talks to the object store all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from fakes.clock import other_clock
from fakes.fixtures import bucket, object_store_server  # noqa: F401
from streamops.settings import Settings
from streamops.store.object_store import ObjectStore

TALK = """
import json, sys, time
from streamops.store.object_store import ObjectStore
from streamops.settings import Settings
store = ObjectStore(Settings(**json.load(sys.stdin)))
etag = store.put("a", b"1", if_absent=True)
store.put("a", b"2", if_match=etag)
print(store.get("a").body.decode(), int(time.time()))
"""


@pytest.mark.full
@pytest.mark.parametrize(("offset", "seconds"), [("+1h", 3600), ("-1h", -3600)])
def test_requests_follow_the_servers_clock(bucket: Settings, offset: str, seconds: int) -> None:  # noqa: F811
    fields = bucket.model_dump(mode="json") | {
        "s3_secret_key": bucket.s3_secret_key.get_secret_value(),
        "snapshot_keys": "",
        "influx_token": "none",
        "airflow_password": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", TALK], input=json.dumps(fields), env={**os.environ, **other_clock(offset)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    body, said = done.stdout.split()
    assert body == "2"
    assert abs(int(said) - time.time() - seconds) < 300, "the clock was not off"
    assert ObjectStore(bucket).get("a").body == b"2"
