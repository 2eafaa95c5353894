"""Definitions: every wrong field is named with what is allowed, and no YAML can do harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamops.model.definitions import MAX_BYTES, Definition, load, parse
from streamops.model.errors import DefinitionError

GOOD = """\
job: clicks
version: v1
code: clicks.py
params: {window: 1 minute}
sources:
  clicks: {kafka: {topic: clicks}, schema: "page string, time timestamp", event_time: time}
stages:
  per_minute:
    output: append
    sinks: [{influxdb: {measurement: clicks, tags: [page], secret: influx}}]
    recount: {source: clicks, aggregate: count, by: [page], window: 1 minute}
resources: {cores: 2, executor_memory: 1g, driver_memory: 1g}
"""
EXAMPLES = Path(__file__).resolve().parents[1] / "spark_jobs"


def refused(text: str) -> str:
    with pytest.raises(DefinitionError) as caught:
        parse(text, "v1.yaml")
    message = str(caught.value)
    assert message.startswith("v1.yaml")
    return message


@pytest.mark.parametrize(
    ("right", "wrong", "where", "allowed"),
    [
        (
            "resources: {cores",
            "resource: {cores",
            "resource is not a field",
            "resources, snapshots, sources, spark, stages",
        ),
        ("{cores: 2", "{core: 2", "resources.core is not a field", "cores, driver_memory"),
        ("{topic: clicks}", "{topics: clicks}", "sources.clicks.kafka.topics is not a field", "topic"),
        ("event_time: time}", "event: time}", "sources.clicks.event is not a field", "event_time, event_time_unit"),
        (
            "output: append",
            "outputs: append",
            "stages.per_minute.outputs is not a field",
            "recount, renamed_from, sinks",
        ),
        ("tags: [page]", "tag: page", "stages.per_minute.sinks.0.influxdb.tag is not a field", "tags, time"),
        ("[{influxdb:", "[{influx:", "stages.per_minute.sinks.0.influx is not a field", "influxdb, log"),
        ("aggregate: count", "agregate: count", "stages.per_minute.recount.agregate is not a field", "aggregate, by"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_allowed_there(right: str, wrong: str, where: str, allowed: str) -> None:
    assert right in GOOD
    message = refused(GOOD.replace(right, wrong))
    assert where in message
    assert allowed in message.split("allowed here: ", 1)[1].split(";")[0]
    assert "at least 1 item" not in message


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("job: clicks", "job: Clicks!", "job: 'Clicks!' is not a job name"),
        ("code: clicks.py", "code: ../clicks.py", "code: String should match"),
        ("output: append", "output: appended", "stages.per_minute.output: Input should be 'append' or 'update'"),
        ("output: append", "mode: realtime\n    output: append", "it needs output: update"),
        ("output: append", "mode: soon", "stages.per_minute.mode: Input should be 'batch', 'realtime' or 'auto'"),
        ("cores: 2", "cores: many", "resources.cores"),
        ("executor_memory: 1g", "executor_memory: 1 gigabyte", "resources.executor_memory"),
        ("source: clicks, aggregate", "source: visits, aggregate", "there is no source 'visits'"),
        ("params: {window: 1 minute}", "params: {window: [1]}", "params.window"),
        ("window: 1 minute}\nresources", "window: soon}\nresources", "recount.window"),
        ("version: v1\n", "", "version is missing"),
        ("{influxdb: {measurement: clicks, tags: [page], secret: influx}}", "{log: {}}", "log sink repeats lines"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(right: str, wrong: str, says: str) -> None:
    assert right in GOOD
    assert says in refused(GOOD.replace(right, wrong))


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("params: {a: 1}\n", "key params stands twice"),
        ("trigger: &t 1 second\n", "anchors and aliases"),
        ("description: *job\n", "anchors and aliases"),
        ("spark: {<<: {a: b}}\n", "merge keys"),
        ("spark: {spark.jars: /tmp/x.jar}\n", "spark: spark.jars is not allowed"),
        ("spark: {spark.driver.extraJavaOptions: -Dx}\n", "spark.driver.extraJavaOptions is not allowed"),
        ("spark: {spark.sql.shuffle.partitions: 4}\n", "spark.sql.shuffle.partitions is not allowed"),
        ("spark: {spark.sql.session.timeZone: Asia/Tokyo}\n", "spark.sql.session.timeZone is not allowed"),
        (
            "spark: {spark.sql.streaming.stateStore.rocksdb.formatVersion: 4}\n",
            "spark.sql.streaming.stateStore.rocksdb.formatVersion is not allowed",
        ),
        ("description: !!python/object/apply:os.system [ls]\n", "line 13"),
        ("description: [\n", "line 14"),
        ("a: b: c\n", "line 13"),
        ("? [a, b]\n: c\n", "line 13"),
        ("1: 2\n", "1: Keys should be strings"),
        ("description: " + "[" * 5000 + "\n", "nested too deeply"),
        ("description: \x00\n", "not allowed"),
        ("--- \na: b\n", "another document"),
    ],
)
def test_hostile_yaml_is_refused_with_the_place(extra: str, says: str) -> None:
    assert says in refused(GOOD + extra)


@pytest.mark.parametrize("text", ["", "3", "- a", "null", "just words"])
def test_what_is_not_a_mapping_is_refused(text: str) -> None:
    assert "must be a mapping" in refused(text)


def test_a_huge_definition_is_refused_before_it_is_parsed() -> None:
    assert f"larger than {MAX_BYTES}" in refused(GOOD + "#" * MAX_BYTES)


def test_characters_of_anchors_inside_text_are_no_anchors() -> None:
    assert parse(GOOD + 'description: "R &D, *new* and <<"\n').description == "R &D, *new* and <<"


def test_two_stages_may_not_write_the_same_points() -> None:
    second = "  other: {sinks: [{influxdb: {measurement: clicks}}]}\nresources:"
    assert "measurement clicks is written by stage per_minute" in refused(GOOD.replace("resources:", second))


def test_with_a_second_driver_executors_are_small_enough_to_be_spread_over_the_workers() -> None:
    assert parse(GOOD).spark_settings == {}
    assert parse(GOOD + "standby_driver: true\n").spark_settings == {"spark.executor.cores": 1}
    own = GOOD + "standby_driver: true\nspark: {spark.executor.cores: 2}\n"
    assert parse(own).spark_settings == {"spark.executor.cores": 2}


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v1.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DefinitionError, match="cannot be read as text"):
        load(path)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_is_written_can_be_read_again(path: Path) -> None:
    definition = load(path)
    assert parse(definition.canonical()) == definition
    assert Definition.model_validate_json(definition.model_dump_json()) == definition
    if path.parent.name == "trade_analyser":
        assert all(stage.recount for stage in definition.stages.values())


def test_a_deployment_has_other_resources_than_its_definition() -> None:
    found = parse(GOOD).with_resources({"cores": 8, "driver_memory": "2g", "of a later release": 1})
    resources = found.resources
    assert (resources.cores, resources.executor_memory, resources.driver_memory) == (8, "1g", "2g")
    assert parse(GOOD).with_resources({}) == parse(GOOD)
