"""The end of an operation: its receipt is made, stored and shown."""

from __future__ import annotations

from collections.abc import Callable

from streamops.model.names import CLUSTER
from streamops.model.records import Deployment
from streamops.operations import receipts
from streamops.operations.operation import Operation
from streamops.operations.ports import Ports
from streamops.operations.receipts import Receipt
from streamops.store import documents, jobs, keys


def settle(ports: Ports, operation: Operation, state: str, say: Callable[[str], None]) -> Receipt:
    """Make and store the receipt of an operation that is over, and mark the operation on the dashboards."""
    store = ports.store
    numbers: dict[str, int] = {}
    if operation.job != CLUSTER:
        record = jobs.record(store, operation.job)
        numbers["before"] = operation.before.deployment if operation.before else 0
        numbers["after"] = record.deployment if record else 0
    read = {
        which: documents.find(store, keys.deployment(operation.job, number), Deployment)
        for which, number in numbers.items()
        if number
    }
    found = receipts.receipt(operation, state, {which: item for which, item in read.items() if item})
    receipts.write(store, found)
    ports.mark(found, say)
    return found
