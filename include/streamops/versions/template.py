"""What ``streamops new`` writes: a small job that can be tested and published as it is."""

from __future__ import annotations

import re
from pathlib import Path

from streamops.model import names
from streamops.model.errors import RefusedError

EXAMPLE = "clicks"

_CODE = '''"""Clicks per page. Function name = stage, positional arguments = sources, keyword-only = params."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def per_minute(clicks: DataFrame, *, window: str) -> DataFrame:
    """One row per page and window: ``page``, ``value`` (clicks) and ``time`` (the window's end)."""
    return (
        clicks.withWatermark("time", "5 seconds")
        .groupBy(F.window("time", window), "page")
        .count()
        .select("page", F.col("count").alias("value"), F.col("window.end").alias("time"))
    )
'''

_DEFINITION = """\
job: {job}
version: v1
code: {module}.py
params: {{window: 1 minute}}
sources:
  clicks: {{kafka: {{topic: clicks}}, schema: "page string, time timestamp", event_time: time}}
stages:
  per_minute:
    output: append
    sinks: [{{influxdb: {{measurement: clicks, tags: [page], secret: influx}}}}]
    # How a recount computes the same result from the topic, independently of the code:
    recount: {{source: clicks, aggregate: count, by: [page], window: 1 minute}}
resources: {{cores: 2, executor_memory: 1g, driver_memory: 1g}}
snapshots: {{every: 1 hour, keep: {{last: 3, hourly: 24, daily: 7}}}}
"""

_SAMPLES = "".join(
    f'{{"page": "{page}", "time": "2026-01-01T12:{minute:02}:{second:02}Z"}}\n'
    for minute, second, page in (
        (0, 1, "/home"), (0, 2, "/home"), (0, 30, "/help"), (0, 59, "/home"),
        (1, 0, "/home"), (1, 1, "/help"), (1, 30, "/home"), (2, 10, "/home"),
    )
)  # fmt: skip


def write_new(directory: Path, job: str | None = None) -> tuple[str, list[Path]]:
    """Write the example job into a directory and return its name and the files.

    The job is named after the directory where that is a valid job name, and ``clicks`` otherwise.

    Raises:
        NameRefusedError: ``job`` is not a job name.
        RefusedError: one of the files is there already; nothing was written.
    """
    if job is None:
        job = directory.resolve().name
        job = job if names.JOB.fullmatch(job) else EXAMPLE
    names.checked("job", job)
    module = job.replace("-", "_")
    module = module if re.match(r"[a-z_]", module) else f"job_{module}"
    files = {
        directory / f"{module}.py": _CODE,
        directory / "v1.yaml": _DEFINITION.format(job=job, module=module),
        directory / "samples" / "clicks.jsonl": _SAMPLES,
    }
    there = [path for path in files if path.exists()]
    if there:
        raise RefusedError(f"{there[0]} exists already; choose a new directory, nothing was written.")
    if directory.exists() and not directory.is_dir():
        raise RefusedError(f"{directory} is a file; choose a new directory, nothing was written.")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return job, list(files)
