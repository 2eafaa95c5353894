"""What the two sources that StreamOps reads itself have in common.

A process of the driver's node looks where a batch ends, and counts what is wrong. Tasks on the executors read the
batch, each a part of it. What they give depends on the batch's offsets alone, so that a batch can be read again.

This module and those of the sources are sent by value to these processes, so they import nothing but the standard
library and Spark. Offsets have the shape of Kafka's, ``{source: {partition: next}}``, so that
snapshots, new stages and the recount treat them alike; what else a source must remember is text beside it.
"""

import json
import logging
import os
import sys
import time
from datetime import datetime, timezone

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

SCHEMA = "value binary, timestamp timestamp"


class Faults:
    """Counts what went wrong, in a file that the runner reads: this process has no other way to tell it.

    The names are part of what users see: ``unreachable``, ``bad_answer``, ``gap``, ``repeat``, ``restarted``,
    ``truncated``, ``unreadable``, ``too_long``, ``unnumbered``.
    """

    def __init__(self, path):
        self.path = path
        self.counts = {}

    def add(self, name, times=1):
        """Count a fault."""
        self.counts[name] = self.counts.get(name, 0) + times
        if self.path:
            fresh = f"{self.path}.{os.getpid()}"
            try:
                with open(fresh, "w", encoding="utf-8") as file:
                    json.dump(self.counts, file)
                os.replace(fresh, self.path)
            except OSError:
                logger("faults", "INFO").warning("the counts of faults cannot be written to %s", self.path)


class PulledSource(DataSource):
    """A source whose options are ``source`` (its name), ``place``, ``start``, ``offsets``, ``most``, ``levels`` and
    ``faults`` (files), ``parts`` (tasks of a batch, at most), and what the kind itself needs."""

    def schema(self):
        """Raw records, as Kafka gives them: the value, and when it was read."""
        return SCHEMA


class PulledReader(DataSourceStreamReader):
    """Reads by offset. A kind has ``initialOffset`` and

    - ``plan(start)``: the offset up to which there are at most ``most`` records; in the driver's node
    - ``split(start, end)``: what to read between two offsets, in at most ``parts`` parts; in the driver's node
    - ``values(part)``: the records of a part; in a task, which counts no faults
    """

    def __init__(self, options):
        self.name = options["source"]
        self.place = options["place"]
        self.most = int(options.get("most", 100000))
        self.parts = int(options.get("parts", 1))
        self.start = options.get("start", "earliest")
        self.offsets = json.loads(options.get("offsets") or "{}")
        self.log = logger(f"source.{self.name}", "INFO")
        self.levels, self._looked_at = options.get("levels"), None
        self.look_at_level()
        self.faults = Faults(options.get("faults"))

    def latestOffset(self, start, limit):
        """Where the next batch ends; ``most`` limits it, whatever Spark asks for."""
        self.look_at_level()
        return self.plan(start)

    def partitions(self, start, end):
        """The parts of a batch, with all that the tasks take from this process: the records' time is one clock's."""
        now = datetime.now(timezone.utc)  # noqa: UP017
        return [InputPartition((part, now, self.log.level)) for part in self.split(start, end)]

    def read(self, partition):
        """The records of a part, dated to when the batch was planned; the executors' clock zone is UTC."""
        part, planned, level = partition.value
        self.log = logger(f"source.{self.name}", level)
        count = 0
        for value in self.values(part):
            yield (value, planned)
            count += 1
        self.log.debug("A task has read %d records", count)

    def look_at_level(self):
        """Take the level that the driver has set for this source's logger, if it has changed."""
        try:
            changed = os.stat(self.levels or "").st_mtime_ns
            if changed == self._looked_at:
                return
            with open(self.levels, encoding="utf-8") as file:
                levels = json.load(file)
        except (OSError, ValueError):
            return
        self._looked_at = changed
        known = [levels[key] for key in (f"source.{self.name}", "source", "root") if key in levels]
        logger(f"source.{self.name}", known[0] if known else "INFO")


def logger(name, level):
    """A logger that writes to this process's error output in the runner's format; the job's log has it from there."""
    found = logging.getLogger(name)
    if not found.handlers:
        handler = logging.StreamHandler(sys.stderr)
        formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(name)s %(message)s")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
        found.addHandler(handler)
        found.propagate = False
    found.setLevel(5 if level == "TRACE" else level)
    return found
