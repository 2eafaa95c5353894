"""One stage on real Spark: run the old function, stop, restart another function on a copy of its checkpoint."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from streamops.model.definitions import parse
from streamops.versions import compatibility
from streamops.versions.compatibility import Verdict
from streamops.versions.fingerprints import Fingerprint
from streamops_runtime.code import StageFunction
from streamops_runtime.fingerprint import fingerprint

SCHEMA = "page string, site string, n long, time timestamp"
Stage = Callable[..., DataFrame]
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Event:
    """One event, ``at`` seconds after the beginning."""

    page: str
    n: int
    at: int
    site: str = "x"

    def line(self) -> str:
        moment = f"2026-01-01T{self.at // 3600:02}:{self.at // 60 % 60:02}:{self.at % 60:02}Z"
        return json.dumps({"page": self.page, "site": self.site, "n": self.n, "time": moment})


Batch = list[Event]


@dataclass
class Switched:
    """What came of a change: the verdict, what was written before and after, or why Spark refused to continue."""

    verdict: Verdict
    before: list[Row]
    after: list[Row] = field(default_factory=list)
    refused: str = ""

    @property
    def all(self) -> dict[Row, Any]:
        """The last value written for each key: what a sink whose points overwrite themselves shows."""
        return {row[:-1]: row[-1] for row in self.before + self.after}


class Lab:
    """Runs stages over files of events, one file a batch."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory, self.count = spark, directory, 0

    def fingerprint(self, stage: Stage, output: str = "append", delay: str | None = None) -> Fingerprint:
        """As publish takes it."""
        names = sources(stage)
        wired = "\n".join(
            f'  {name}: {{kafka: {{topic: {name}}}, schema: "{SCHEMA}", event_time: time}}' for name in names
        )
        definition = parse(
            f"job: lab\nversion: v1\ncode: lab.py\nsources:\n{wired}\nstages:\n"
            f"  s: {{output: {output}, sinks: [{{influxdb: {{measurement: s}}}}]}}\n"
        )
        with tempfile.TemporaryDirectory() as temporary:
            return fingerprint(self.spark, definition, "s", StageFunction("s", stage, names, {}), temporary)[0]

    def verdict(self, old: Stage, new: Stage, outputs: tuple[str, str] = ("append", "append")) -> Verdict:
        before, after = self.fingerprint(old, outputs[0]), self.fingerprint(new, outputs[1])
        return compatibility.continued("s", before, after)

    def switch(
        self,
        old: Stage,
        new: Stage,
        before: list[Batch],
        after: list[Batch],
        *,
        outputs: tuple[str, str] = ("append", "append"),
        state: bool = True,
        other: list[Batch] | None = None,
    ) -> Switched:
        """Run ``old`` over ``before``, then ``new`` over ``after``.

        Args:
            state: False: the new stage begins without a checkpoint, after the files of ``before``.
            other: the batches of every source after the first, there from the beginning.
        """
        self.count += 1
        place = self.directory / str(self.count)
        first = sources(old)[0]
        for name in {*sources(old), *sources(new)} - {first}:
            self.write(place / name, other or [])
        self.write(place / first, before)
        done = Switched(self.verdict(old, new, outputs), self.run(old, place, "old", outputs[0]))
        if state:
            shutil.copytree(place / "checkpoint-old", place / "checkpoint-new")
        else:
            shutil.rmtree(place / first)
        self.write(place / first, after, since=len(before))
        try:
            done.after = self.run(new, place, "new", outputs[1])
        except StreamingQueryException as error:
            if done.verdict.outcome.startswith("kept"):
                raise  # whatever it is, it is no refusal
            done.refused = str(error)
        return done

    def write(self, directory: Path, batches: list[Batch], since: int = 0) -> None:
        """One file a batch, in the order of their times."""
        directory.mkdir(parents=True, exist_ok=True)
        for number, batch in enumerate(batches, since):
            path = directory / f"{number:04}.json"
            path.write_text("".join(f"{event.line()}\n" for event in batch))
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def run(self, stage: Stage, place: Path, checkpoint: str, output: str = "append") -> list[Row]:
        """Everything that is there, and what it wrote."""
        written: list[Row] = []

        def sink(frame: DataFrame, number: int) -> None:
            written.extend(tuple(row) for row in frame.collect())

        self.run_into(sink, stage, place, checkpoint, output)
        return written

    def run_into(
        self, sink: Callable[[DataFrame, int], None], stage: Stage, place: Path, checkpoint: str, output: str = "append"
    ) -> None:
        """Everything that is there, each batch given to ``sink``."""
        frames = [
            self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).name(name).json(str(place / name))
            for name in sources(stage)
        ]
        writer = stage(*frames).writeStream.outputMode(output).trigger(availableNow=True).foreachBatch(sink)
        writer.option("checkpointLocation", str(place / f"checkpoint-{checkpoint}")).start().awaitTermination()

    def at_once(self, stage: Stage, batches: list[Batch], other: list[Batch] | None = None) -> dict[Row, Any]:
        """What an uninterrupted run comes to: the stage over all events as a table."""
        self.count += 1
        place = self.directory / str(self.count)
        names = sources(stage)
        for name in names:
            self.write(place / name, batches if name == names[0] else other or [])
        frames = [self.spark.read.schema(SCHEMA).json(str(place / name)) for name in names]
        return {tuple(row)[:-1]: tuple(row)[-1] for row in stage(*frames).collect()}


def sources(stage: Stage) -> tuple[str, ...]:
    """The sources that a stage's function names."""
    parameters = inspect.signature(stage).parameters.values()
    return tuple(item.name for item in parameters if item.default is item.empty)


def final(points: dict[Row, Any], before: int = 1000) -> dict[Row, Any]:
    """Points whose window, the last part of their key in seconds, had ended: those that append has written."""
    return {key: value for key, value in points.items() if key[-1] < before}
