"""What the executors of a job have written, read from the nodes by way of the workers' own pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import httpx

from streamops.spark.master import Worker
from streamops.store import joblogs
from streamops.store.joblogs import Line

LAST_BYTES = 256 * 1024  # of each executor's error output
_HEAD = re.compile(r"==== Bytes \d+-\d+ of \d+ of .* ====\n")


def read(workers: Iterable[Worker], apps: dict[str, str], timeout_s: float = 5.0) -> tuple[list[Line], list[str]]:
    """The last lines of every executor of some applications, on all workers that answer.

    Args:
        apps: Spark application -> launch.

    Returns:
        The lines, and one sentence for each worker that did not answer.
    """
    lines: list[Line] = []
    trouble: list[str] = []
    with httpx.Client(timeout=timeout_s, trust_env=False) as http:
        for worker in workers:
            if worker.state != "ALIVE" or not worker.page:
                continue
            page = worker.page
            try:
                listed = http.get(f"{page}/json/")
                listed.raise_for_status()
                for app, executor in executors(listed.json(), apps):
                    asked: dict[str, str | int] = {
                        "appId": app,
                        "executorId": executor,
                        "logType": "stderr",
                        "byteLength": LAST_BYTES,
                    }
                    answer = http.get(f"{page}/log/", params=asked)
                    answer.raise_for_status()
                    lines += parsed(answer.text, apps[app], worker.address, executor)
            except (httpx.HTTPError, ValueError) as error:
                trouble.append(f"worker {worker.id} at {page} did not answer ({type(error).__name__})")
    return lines, trouble


def executors(page: dict[str, Any], apps: Iterable[str]) -> list[tuple[str, str]]:
    """Application and executor id of those on a worker's JSON page that belong to ``apps``."""
    entries = [*page.get("executors", ()), *page.get("finishedexecutors", ())]
    wanted = set(apps)
    return sorted({(str(item["appid"]), str(item["id"])) for item in entries if item.get("appid") in wanted})


def parsed(text: str, launch: str, host: str, executor: str) -> list[Line]:
    """Lines of one executor; those before the first that carries a time have none to be sorted by, and are left out."""
    never = datetime(1970, 1, 1, tzinfo=UTC)
    before = Line(time=never, text="", launch=launch, host=host, where=f"executor-{executor}")
    found = []
    for row in _HEAD.sub("", text, count=1).splitlines():
        before = joblogs.parse(row, before)
        found.append(before)
    return [line for line in found if line.time != never and line.text]
