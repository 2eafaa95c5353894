"""A user's own job, from an empty directory to an upgrade, with the installed command and on real servers."""

import json
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kafka import KafkaProducer

from streamops.settings import Settings

COMMAND = Path(sys.executable).with_name("streamops")
PAGES = ("/home", "/help", "/shop")
TOTAL = '''

def all_pages(clicks: DataFrame, *, window: str) -> DataFrame:
    """Clicks on all pages together."""
    return (
        clicks.withWatermark("time", "5 seconds")
        .groupBy(F.window("time", window))
        .count()
        .select(F.col("count").alias("value"), F.col("window.end").alias("time"))
    )
'''
STAGE = """\
  all_pages:
    output: append
    sinks: [{influxdb: {measurement: MEASUREMENT_all, secret: influx}}]
    recount: {source: clicks, aggregate: count, window: 1 minute}
"""


def streamops(*words: str, code: int = 0, timeout: float = 420) -> str:
    """Run the command and return what it printed; fails the test when it ends with another code."""
    ended = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=timeout, check=False)
    assert ended.returncode == code, f"{words}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    assert "Traceback" not in ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def click(settings: Settings, topic: str, first: datetime, minutes: int) -> None:
    """Thirty clicks in each minute."""
    producer = KafkaProducer(bootstrap_servers=settings.kafka_bootstrap_servers)
    for number in range(minutes * 30):
        event = {"page": PAGES[number % 3], "time": (first + timedelta(seconds=2 * number)).isoformat()}
        producer.send(topic, json.dumps(event).encode())
    producer.flush(30)
    producer.close()


def recounted(job: str, expected: dict[str, int], deadline_s: float = 300) -> dict[str, dict]:
    """Wait until a clean recount compares at least this many points of each measurement."""
    end = time.monotonic() + deadline_s
    while True:
        ended = subprocess.run([COMMAND, "recount", job, "--json"], capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            found = {item["measurement"]: item for item in json.loads(ended.stdout)["measurements"]}
            if all(name in found and found[name]["expected"] >= least for name, least in expected.items()):
                return found
        assert time.monotonic() < end, f"{ended.stdout}\n{ended.stderr}"
        time.sleep(1)


@pytest.mark.stack
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_job_of_ones_own_from_new_to_upgrade(stack: Settings, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex[:8]
    job, topic, measurement = f"clicks-{mark}", f"clicks-{mark}", f"clicks_{mark}"
    directory = tmp_path / job
    first = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
    assert f"Job {job}." in streamops("new", str(directory))
    definition = (directory / "v1.yaml").read_text().replace("measurement: clicks", f"measurement: {measurement}")
    definition = definition.replace("1g", "600m").replace("cores: 2", "cores: 1")
    (directory / "v1.yaml").write_text(definition)
    assert "per_minute: 5 rows" in streamops("test", str(directory))
    assert f"Published {job} v1" in streamops("publish", str(directory))
    assert "v9" in streamops("deploy", job, "v9", code=1)  # never published

    assert f"no topic {topic}" in streamops("deploy", job, "v1", "--topic", f"clicks={topic}", code=1)
    shown = streamops("deploy", job, "v1", "--topic", f"clicks={topic}", "--create-topics", "2")
    assert f"{job} v1 is running." in shown
    click(stack, topic, first, 5)
    recounted(job, {measurement: 3 * 4})

    code = next(directory.glob("*.py"))
    code.write_text(code.read_text() + TOTAL)
    added = definition.replace("version: v1", "version: v2").replace(
        "resources:", STAGE.replace("MEASUREMENT", measurement) + "resources:"
    )
    (directory / "v2.yaml").write_text(added)
    streamops("publish", str(directory), "v2")
    assert "upgrade" in streamops("deploy", job, "v2", code=1)  # another version runs: the refusal names the way

    assert f"{job} v2 is running" in streamops("upgrade", job, "v2", "--snapshot", "before-v2", "--probation", "5")
    click(stack, topic, first + timedelta(minutes=5), 5)
    found = recounted(job, {measurement: 3 * 9, f"{measurement}_all": 3})
    assert found[measurement]["missing"] == found[measurement]["wrong"] == found[measurement]["unexpected"] == 0

    listed = streamops("snapshots", job)
    assert listed.split()[:7] == ["TIME", "SIZE", "(bytes)", "JOB", "NAME", "SNAPSHOT", "NAME"]
    assert "before-v2" in listed
    shown = streamops("jobs", "show", job)
    assert "all_pages" in shown
    assert "Next:" in shown
    operation = json.loads(streamops("operations", job, "--json"))[-1]["id"]
    assert "await_stop" in streamops("operations", "show", operation)
    assert "nothing to abort" in streamops("operations", "abort", operation, code=1)
    assert "is stopped" in streamops("cancel", job)
    assert "desired" in streamops("jobs", "show", job, "--json")
