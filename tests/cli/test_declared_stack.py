"""The transactions tutorial, told by its demo with the installed command on the real servers (rows C1 to C6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demos.transactions import code, sender
from demos.transactions.story import JOB, Transactions
from fresh_job import with_ledger
from stack.layout import Layout
from streamops import snapshots
from streamops.cluster.membership import present
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.errors import NotFoundError
from streamops.operations.receipts import Receipt
from streamops.settings import Settings, read_pairs
from streamops.store import documents, jobs, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts
from support import Operator, first_members


@pytest.fixture
def cluster(stack: Settings) -> Iterator[Settings]:
    """The cluster as every stack begins with it, before and after, and no job of an earlier run."""
    operator = Operator(stack)
    first_members(operator)
    yield stack
    first_members(operator)
    if jobs.record(ObjectStore(stack), JOB) is not None:
        operator.run("delete_job", JOB)


@pytest.mark.stack
@pytest.mark.full
def test_the_tutorial_is_replayed_and_leaves_nothing_behind(cluster: Settings) -> None:
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)  # what a failed test shows

    Transactions(cluster, say).tell()

    last = len(lines) - lines[::-1].index("$ streamops logs transactions --logger sink")
    logged = "\n".join(lines[last : lines.index(next(line for line in lines[last:] if line.startswith("\n==")))])
    for version, numbers in {"V1": (1, 2, 3), "V2": (4, 5)}.items():
        for number in sender.TRANSACTIONS:
            assert logged.count(sender.logged(version, number)) == (number in numbers)
    told = "\n".join(lines)
    assert f"unchanged: {JOB} runs v1, as declared" in told
    assert "  snapshots: snapshot-transaction" in told
    assert "  topics: transactions" in told
    assert "restart_cluster: cluster (it is stopped)" in told

    store, layout = ObjectStore(cluster), Layout.find()
    assert (jobs.record(store, JOB), artifacts.versions(store, JOB), snapshots.list(store, JOB)) == (None, [], [])
    with pytest.raises(NotFoundError):
        with_ledger(cluster, lambda ledger: ledger.end_offsets(sender.TOPIC))
    assert not any(key.startswith("TRANSACTIONS_") for key in read_pairs(layout.env_file))
    assert code.remove(layout)  # nothing is left to be removed, which is no error
    nodes = SupervisedNodes(cluster)
    assert len(present(nodes.inventory, nodes.master())) == 2
    kept = {found.runbook for found in documents.every(store, keys.receipts(JOB), Receipt)}
    assert {"deploy_job", "snapshot_job", "delete_job"} <= kept
