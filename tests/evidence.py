"""What a failed test of the stack leaves to read: enough to understand it without running it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime

from streamops.model.errors import StreamOpsError
from streamops.model.names import CLUSTER
from streamops.settings import Settings
from streamops.store import jobs, keys
from streamops.store.joblogs import Reader, keep
from streamops.store.object_store import ObjectStore

LINES = 40  # of each job's log


def evidence(settings: Settings, since: datetime) -> Iterator[tuple[str, str]]:
    """Titles and texts about each job and the cluster that an operation or a driver has touched since then."""
    store = ObjectStore(settings)
    for scope in (*jobs.names(store), CLUSTER):
        touched = [info.key for info in store.list(keys.operations(scope)) if info.modified >= since]
        for key in touched:
            yield f"operation {key}", told(lambda key=key: _object(store, key))
        if scope == CLUSTER:
            continue
        statuses = [info.key for info in store.list(keys.launches(scope)) if info.modified >= since]
        if not touched and not statuses:
            continue
        for key in (keys.record(scope), keys.lease(scope), keys.lock(scope), *statuses):
            yield key, told(lambda key=key: _object(store, key))
        yield f"log of {scope}", told(lambda scope=scope: _log(store, scope, since))


def told(read: Callable[[], str]) -> str:
    """What ``read`` returns, or why it cannot: the server that is asked may be the one that the test broke."""
    try:
        return read()
    except StreamOpsError as error:
        return str(error)


def _object(store: ObjectStore, key: str) -> str:
    text = store.get(key).body.decode(errors="replace")
    try:
        return json.dumps(json.loads(text), indent=1)
    except ValueError:  # what is damaged, or no JSON, is shown as it is
        return text


def _log(store: ObjectStore, job: str, since: datetime) -> str:
    lines = list(keep(Reader(store, job).more(), "INFO", since=since))[-LINES:]
    return "\n".join(f"{line.time:%H:%M:%S} {line.level} {line.logger} [{line.launch}] {line.text}" for line in lines)
