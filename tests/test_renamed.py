"""A stage without state that gets another name, or is added: who may say so, the verdict, and where it begins."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fakes.rig import JOB, SUM, Rig, definition
from streamops import snapshots
from streamops.model import records
from streamops.model.definitions import Definition, LogSink, Source, parse
from streamops.model.errors import DefinitionError
from streamops.model.manifest import Manifest, ManifestStage
from streamops.model.records import StageStart
from streamops.operations import receipts
from streamops.spark.checkpoints import parse_offsets
from streamops.store import documents, jobs, keys
from streamops.versions import artifacts, verdicts
from streamops.versions.artifacts import ArtifactManifest
from streamops_runtime.csv_tail import CsvTailReader
from streamops_runtime.gate import Gate
from streamops_runtime.session import STREAMING
from streamops_runtime.sinks import LogWriter
from streamops_runtime.sources import accepted
from streamops_runtime.streams import Places, raw_stream

STATELESS = SUM.model_copy(update={"operators": ()})


def renaming(version: str, stages: tuple[str, ...], **renamed: str) -> Definition:
    """A version whose stages NAME had the names that are given."""
    made = definition(version, stages)
    update = {name: made.stages[name].model_copy(update={"renamed_from": old}) for name, old in renamed.items()}
    return made.model_copy(update={"stages": {**made.stages, **update}})


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ("a: {S}\n  b: {S, renamed_from: a}", "stages.b.renamed_from: another stage continues a"),
        ("a: {S, renamed_from: x}\n  b: {S, renamed_from: x}", "renamed_from: another stage continues x"),
        ("a: {S, renamed_from: ../x}", "renamed_from"),
        ("a: {S, mode: realtime, output: update, renamed_from: x}", "takes no renamed_from"),
    ],
)
def test_a_name_is_taken_over_by_one_stage_that_runs_in_batches(stages: str, said: str) -> None:
    wired = stages.replace("S", "sinks: [{influxdb: {measurement: NAME}}]")
    for name in ("one", "two"):
        wired = wired.replace("NAME", name, 1)
    with pytest.raises(DefinitionError, match=said):
        parse(
            f'job: j\nversion: v1\ncode: j.py\nsources: {{e: {{kafka: {{topic: e}}, schema: "n int"}}}}\n'
            f"stages:\n  {wired}\n"
        )


def test_the_way_back_needs_no_word() -> None:
    old, new = definition("v1", ("a", "b")), renaming("v2", ("a", "c"), c="b")
    assert new.renamed(old.stages, old) == {"c": "b"}
    assert old.renamed(new.stages, new) == {"b": "c"}
    assert new.renamed(new.stages, new) == {}  # the next deployment of the same version: it has the name already
    assert old.renamed(("a",), new) == {}


def published(rig: Rig, made: Definition, fingerprint: object = STATELESS) -> ArtifactManifest:
    """A version of the rig's job, all of whose stages have this fingerprint."""
    rig.publish(made.version, tuple(made.stages))
    found = artifacts.load_manifest(rig.store, JOB, made.version)
    found = found.model_copy(
        update={"definition": made, "fingerprints": dict.fromkeys(made.stages, fingerprint.model_dump(mode="json"))}
    )
    documents.write(rig.store, keys.artifact_manifest(JOB, made.version), found)
    return found


def test_only_without_state_it_is_the_same_stage(rig: Rig) -> None:
    for fingerprint, outcomes in (
        (STATELESS, {"a": "kept", "c": "kept"}),
        (SUM, {"a": "kept", "c": "starts empty", "b": "dropped"}),
    ):
        old = published(rig, definition("v3", ("a", "b")), fingerprint)
        new = published(rig, renaming("v4", ("a", "c"), c="b"), fingerprint)
        found = verdicts.of_deployment(old, {}, new, {})
        assert {item.stage: item.outcome for item in found} == outcomes
        assert any(item.lost for item in found) == (fingerprint is SUM)


@pytest.mark.full
def test_it_continues_where_it_stood_under_its_old_name_and_so_does_the_way_back(rig: Rig) -> None:
    published(rig, definition("v3", ("a", "b")))
    published(rig, renaming("v4", ("a", "c"), c="b"))
    rig.run("deploy_job", version="v3")
    rig.commits_more()
    done = rig.run("upgrade_job", version="v4", snapshot="there")
    told = receipts.read(rig.store, JOB, done.id)
    assert told is not None
    assert told.verdicts["c"].startswith("kept. It is b under another name")
    kept = snapshots.load(rig.store, JOB, "there")
    begun = jobs.deployment(rig.store, JOB, 2).stages
    assert begun["c"] == StageStart(since_deployment=2, offsets=kept.stages["b"].offsets)
    assert begun["a"] == kept.stages["a"].start
    rig.commits_more("c")
    assert rig.recount("c", since=begun["c"].offsets["events"]["0"])  # every event from there on, and none before

    rig.run("upgrade_job", version="v3", snapshot="back")
    kept = snapshots.load(rig.store, JOB, "back")
    assert jobs.deployment(rig.store, JOB, 3).stages["b"].offsets == kept.stages["c"].offsets
    rig.commits_more("b")

    rig.run("cancel_job")
    rig.run("deploy_job", version="v3", from_snapshot="there")
    assert jobs.deployment(rig.store, JOB, 4).stages["b"].since_deployment == 1  # the snapshot has that name


class Lines:
    """Stages without state over a directory of lines, each at its own place; what they have written, by stage."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.number = directory, 0
        self.written: dict[str, list[int]] = {}
        self.at: dict[str, dict[str, Any]] = {}  # what a checkpoint holds
        self.begun: dict[str, StageStart] = {}

    def append(self, *numbers: int) -> None:
        with (self.directory / "a.csv").open("a") as file:
            file.writelines(f"{number}\n" for number in numbers)

    def work(self, stage: str) -> None:
        """Everything that there is for one stage, which begins where its deployment says."""
        begun = self.begun[stage].offsets.get("events", {}) if stage in self.begun else {}
        options = {"source": "events", "place": str(self.directory), "offsets": json.dumps(begun)}
        reader = CsvTailReader({**options, "faults": str(self.directory / "faults.json")})
        start = self.at.get(stage) or reader.initialOffset()
        self.at[stage] = reader.plan(start)
        parts = reader.split(start, self.at[stage])
        self.written.setdefault(stage, []).extend(int(line) for part in parts for line in reader.values(part))

    def deploy(self, old: Definition, new: Definition, *, renamed: bool = True) -> None:
        """As an upgrade does: all stages have stopped; those that keep their names keep their checkpoints."""
        self.number += 1
        stood = {name: {"events": parsed_offsets(self.at[name])} for name in old.stages}
        kept = Manifest(
            job=JOB, name="s", attempt="t", created=records.now(), live=False, version=old.version,
            artifact_sha256="a", runtime_sha256="r", deployment=1, epoch=1, spark_version="4", objects=(),
            stages={name: ManifestStage(batch=1, offsets=at, start=self.begun.get(name, StageStart(since_deployment=0)))
                    for name, at in stood.items()},
        )  # fmt: skip
        names = new.renamed(kept.stages, old) if renamed else {}
        self.begun = jobs.starts(new, self.number, kept, lambda source: {}, renamed=names)
        self.at = {name: self.at[name] for name in new.stages if name in kept.stages}


class Queries(Lines):
    """The same with queries of Spark, their checkpoints, and the log sink."""

    def __init__(self, directory: Path, session: SparkSession, log: pytest.LogCaptureFixture) -> None:
        super().__init__(directory / "lines")
        self.directory.mkdir()
        self.session, self.log = session, log
        self.source = Source.model_validate({"csv_tail": {"directory": str(self.directory)}, "schema": "n int"})

    def work(self, stage: str) -> None:
        begun = self.begun.get(stage, StageStart(since_deployment=0))
        checkpoint = self.directory.parent / f"{stage}-{begun.since_deployment}"
        where = Places("", directory=self.directory.parent)
        raw = raw_stream(self.session, "events", self.source, where, begun.offsets.get("events"))
        gate = Gate(stage, [LogWriter(stage, LogSink(format="{n}"))], lambda: None, threading.Event())
        writer = accepted("events", self.source, raw).writeStream.foreachBatch(gate)
        self.log.clear()
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.processAllAvailable()
        query.stop()
        found = [int(record.getMessage()) for record in self.log.records if record.name == f"sink.{stage}"]
        self.written.setdefault(stage, []).extend(found)
        last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)).name
        (line,) = (row for row in (checkpoint / "offsets" / last).read_text().split("\n") if row.startswith("events:"))
        self.at[stage] = json.loads(line.removeprefix("events:"))


def parsed_offsets(offset: dict[str, Any]) -> dict[str, int]:
    """What a checkpoint's offset of files is to StreamOps."""
    text = f'v2\n{{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{{}}}}\nevents:{json.dumps(offset)}'
    return parse_offsets(text)[0]["events"]


@pytest.fixture(params=["readers", pytest.param("spark", marks=pytest.mark.full)])
def apart(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Lines:
    """Stage b is three lines ahead of a."""
    lines = Lines(tmp_path)
    if request.param == "spark":
        session = request.getfixturevalue("spark").newSession()
        for key, value in STREAMING.items():
            if not key.endswith("checkpointFileManagerClass"):  # which writes to an object store only
                session.conf.set(key, value)
        caplog.set_level(logging.INFO, "sink")
        lines = Queries(tmp_path, session, caplog)
    lines.append(1, 2, 3, 4)
    lines.work("a")
    lines.append(5, 6, 7)
    lines.work("b")
    return lines


def test_of_two_stages_at_different_offsets_none_writes_a_line_twice_or_leaves_one_out(apart: Lines) -> None:
    old, new = definition("v1", ("a", "b")), renaming("v2", ("a", "c"), c="b")
    apart.deploy(old, new)
    apart.append(8, 9)
    for stage in new.stages:
        apart.work(stage)
    assert apart.written == {"a": [*range(1, 10)], "b": [*range(1, 8)], "c": [8, 9]}
    apart.append(10)
    apart.work("c")
    apart.deploy(new, old)  # back, without a word
    apart.append(11)
    for stage in old.stages:
        apart.work(stage)
    assert apart.written == {"a": [*range(1, 12)], "b": [*range(1, 8), 11], "c": [8, 9, 10]}


def test_a_branch_without_state_that_is_added_begins_where_the_hindmost_stands(apart: Lines) -> None:
    apart.deploy(definition("v1", ("a", "b")), definition("v2", ("a", "b", "c")))
    apart.append(8)
    for stage in ("a", "b", "c"):
        apart.work(stage)
    assert apart.written == {"a": [*range(1, 9)], "b": [*range(1, 9)], "c": [5, 6, 7, 8]}


def test_without_the_word_lines_are_written_again(apart: Lines) -> None:
    apart.deploy(definition("v1", ("a", "b")), renaming("v2", ("a", "c"), c="b"), renamed=False)
    apart.work("c")
    assert apart.written["c"] == [5, 6, 7]
