"""What is written to InfluxDB: refused rows are put aside, a new stage fills itself, another bucket gets the rest."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer
from influxdb_client import InfluxDBClient
from typer.testing import CliRunner

from fresh_job import FreshJob, plans, publish_quickly, wait_for
from stack.layout import Layout
from streamops.cli import app
from streamops.clients.influx import Points
from streamops.clients.kafka import Ledger
from streamops.model.records import State
from streamops.settings import Settings
from streamops.spark import checkpoints
from streamops.store import jobs, keys, quarantine, waiting
from support import drivers, invariant, mark

pytestmark = [pytest.mark.stack, pytest.mark.full]
HOSTILE = ("ends in \\", "L" * 70_000, "tab\tbed", "line\nbreak")
FINE = ("a b", "a,b=c", 'quote"d', "back\\slash", "ünïcödé 💹", "=", ",", "#", "'", "trailing space ")


@pytest.fixture(scope="module")
def writing(stack, operator, tmp_path_factory) -> Iterator[FreshJob]:
    """v1 at work."""
    job = FreshJob.publish(stack, tmp_path_factory.mktemp("writing"), versions=("v1",))
    with job.trades(200, 5):
        operator.run("deploy_job", job.name, version="v1")
        yield job
    operator.run("delete_job", job.name)


def measurement(job: FreshJob) -> str:
    return f"{job.name.replace('-', '_')}_avg_1s"


def test_rows_that_influxdb_refuses_are_put_aside_and_the_job_runs_on(writing, stack, operator, tmp_path):
    job = writing
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap_servers})
    start = mark(job)
    producer.list_topics(job.name, timeout=30)  # connects, so that they come before their second is over: late ones
    assert waiting.until(lambda: time.time() % 1 < 0.5, 30, 0.05)  # may be counted or not
    at = int(time.time() * 1000)
    for symbol in (*HOSTILE, *FINE):
        trade = {"symbol": symbol, "price": 100, "quantity": 1, "time": at}
        producer.produce(job.name, json.dumps(trade).encode(), timestamp=at)
    producer.flush(30)
    wait_for(
        lambda: len(list(quarantine.read(job.store, job.name))) == len(HOSTILE), 120, "the points in the quarantine"
    )
    invariant(job, start)
    assert job.status().state == State.RUNNING
    assert job.status().stages["avg_1s"].refused_rows == len(HOSTILE)
    operator.run("cancel_job", job.name)
    operator.run("start_job", job.name)  # what was refused is read and refused again at most, and harms nobody
    invariant(job, start)

    report = job.recount()
    refused = {item.measurement: item.refused for item in report.measurements}
    assert (report.clean, refused[measurement(job)]) == (True, len(HOSTILE)), report.reason
    points = Points(stack)
    found = {tags[0] for _, tags, _ in points.read(measurement(job), at // 1000 * 1000, at + 2000, ("symbol",))}
    assert set(FINE) <= found  # as they were, character by character

    file = tmp_path / "refused.jsonl"
    assert CliRunner().invoke(app, ["quarantine", "export", job.name, str(file)]).exit_code == 0
    corrected = [json.loads(text) for text in file.read_text().splitlines()]
    for number, item in enumerate(corrected):
        item["tags"]["symbol"] = f"corrected {number}"
    refusal = CliRunner().invoke(app, ["quarantine", "write", job.name, str(file)])
    assert (refusal.exit_code, "Nothing was written" in refusal.output) == (1, True)
    file.write_text("".join(f"{json.dumps(item)}\n" for item in corrected))
    assert CliRunner().invoke(app, ["quarantine", "write", job.name, str(file)]).exit_code == 0
    assert list(quarantine.read(job.store, job.name)) == []
    found = {tags[0] for _, tags, _ in points.read(measurement(job), at // 1000 * 1000, at + 2000, ("symbol",))}
    assert {"corrected 0", "corrected 1"} <= found
    points.close()


def volumes(job: FreshJob, from_ms: int, to_ms: int) -> dict[int, float]:
    """What was written of the stage that is new: by the end of the second."""
    points = Points(job.settings)
    name = measurement(job).replace("avg_1s", "vol_1s")
    found = {at: value for at, _, value in points.read(name, from_ms, to_ms, ())}
    points.close()
    return found


@pytest.mark.long
def test_a_new_stage_fills_itself_from_before_the_switch_while_the_other_goes_on(writing, operator):
    """In batches so small that it takes some, and through the end of its driver meanwhile: all is whole."""
    job = writing
    text = (job.directory / "v1.yaml").read_text().replace("version: v1", "version: filled")
    text = text.replace("max_per_batch: 300000", "max_per_batch: 1500")
    added = measurement(job).replace("avg_1s", "vol_1s")
    stage = (
        f"  vol_1s:\n    fill: 45 seconds\n    output: append\n    sinks: [{{influxdb: {{measurement: {added}}}}}]\n"
        "    recount: {source: trades, aggregate: sum, column: quantity, window: 1 second}\n"
    )
    (job.directory / "filled.yaml").write_text(text.replace("resources: {", f"{stage}resources: {{"))
    known = plans("v2")
    publish_quickly(job.store, job.directory, "filled", plan={name: known[name] for name in ("avg_1s", "vol_1s")})
    with closing(Ledger(job.settings)) as ledger:

        def a_minute_ago() -> int:
            return ledger.offsets_at(job.name, int(time.time() * 1000) - 60_000)["0"]

        wait_for(a_minute_ago, 120, "a minute of trades")
    start = mark(job)
    done = operator.run("upgrade_job", job.name, version="filled", recount=False, standby=False)
    assert done.facts("check")["outcomes"] == {"avg_1s": "kept", "vol_1s": "refilled"}
    begun = jobs.deployment(job.store, job.name, job.record().deployment).stages["vol_1s"]
    assert begun.filled_to_ms
    assert begun.whole_after_ms == begun.filled_to_ms - 45_000
    for process in drivers(job.name):
        process.kill()
    invariant(job, start)
    to_ms = begun.filled_to_ms + 5000
    wait_for(lambda: volumes(job, to_ms, to_ms + 300_000), 120, "what comes after the switch")
    seconds = volumes(job, 0, to_ms)
    assert sorted(seconds) == list(range((begun.whole_after_ms // 1000 + 1) * 1000, to_ms, 1000))
    (found,) = (item for item in job.recount().measurements if item.measurement == added)  # since it began
    assert (found.missing, found.wrong, found.unexpected, found.partial) == (0, 0, 0, 0), found
    assert found.expected >= len(seconds)


@pytest.fixture
def elsewhere(stack: Settings) -> Iterator[Settings]:
    """Another bucket, which the nodes know by the secret *elsewhere*."""
    file, bucket = Layout.find().node / "node.env", f"{stack.influx_bucket}-elsewhere"
    known = file.read_text()
    found = stack.model_copy(update={"influx_bucket": bucket})
    token = stack.influx_token.get_secret_value()
    parts = {"URL": stack.influx_url, "ORG": stack.influx_org, "TOKEN": token, "BUCKET": bucket}
    with InfluxDBClient(url=stack.influx_url, token=token, org=stack.influx_org) as client:
        made = client.buckets_api().create_bucket(bucket_name=bucket, org=stack.influx_org)
        file.write_text(known + "".join(f"ELSEWHERE_{name}={value}\n" for name, value in parts.items()))
        yield found
        file.write_text(known)
        client.buckets_api().delete_bucket(made)


def averages(job: FreshJob, from_ms: int, to_ms: int) -> dict[tuple[int, str], float]:
    """What the topic comes to: by the end of the second and symbol."""
    prices: dict[tuple[int, str], list[int]] = defaultdict(list)
    ledger = Ledger(job.settings)
    for *_, value in ledger.read(job.name, {"0": 0}, ledger.end_offsets(job.name)):
        trade = json.loads(value)
        end = (trade["time"] // 1000 + 1) * 1000
        if from_ms <= end < to_ms:
            prices[end, trade["symbol"]].append(trade["price"])
    ledger.close()
    return {key: sum(found) / len(found) for key, found in prices.items()}


def written(job: FreshJob, settings: Settings, from_ms: int, to_ms: int) -> dict[tuple[int, str], float]:
    points = Points(settings)
    found = {(at, *tags): value for at, tags, value in points.read(measurement(job), from_ms, to_ms, ("symbol",))}
    points.close()
    return found


@pytest.mark.long
def test_another_bucket_and_more_partitions_go_on_where_the_version_before_ended(writing, stack, elsewhere, operator):
    """The state is kept, in more partitions: no second is missing, none is partial, and none is in both."""
    job = writing
    text = (job.directory / "filled.yaml").read_text()
    changed = text.replace("version: filled", "version: elsewhere").replace("secret: influx", "secret: elsewhere")
    changed = changed.replace("resources: {", "resources: {state_partitions: 3, ")
    (job.directory / "elsewhere.yaml").write_text(changed)
    known = plans("v2")
    publish_quickly(job.store, job.directory, "elsewhere", plan={name: known[name] for name in ("avg_1s", "vol_1s")})
    job.caught_up()
    from_ms = int(time.time() * 1000) // 1000 * 1000
    wait_for(lambda: written(job, stack, from_ms, from_ms + 300_000), 120, "points of the version before")
    done = operator.run("upgrade_job", job.name, version="elsewhere", recount=False, standby=False)
    assert done.facts("check")["outcomes"] == {"avg_1s": "kept", "vol_1s": "kept"}
    deployed = jobs.deployment(job.store, job.name, job.record().deployment)
    epoch = checkpoints.current_epoch(job.store, job.name, deployed.number)
    assert checkpoints.state_partitions(job.store, keys.stage(job.name, deployed.number, epoch, "avg_1s")) == 3
    now = int(time.time() * 1000)
    to_ms = now // 1000 * 1000 + 5000
    wait_for(lambda: any(at >= to_ms for at, _ in written(job, elsewhere, now, now + 300_000)), 120, "points there")
    before, after = (written(job, settings, from_ms, to_ms) for settings in (stack, elsewhere))
    assert before
    assert after
    assert not set(before) & set(after)
    assert {**before, **after} == pytest.approx(averages(job, from_ms, to_ms))
    operator.run("cancel_job", job.name)  # before its bucket goes
