"""Fault 31: the clock of the node that hosts driver and executors is an hour off."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from fakes.clock import other_clock
from fresh_job import wait_for
from streamops.adapters.nodes import SupervisedNodes
from streamops.records import now
from support import first_members, hosting, invariant, mark, on_cluster

pytestmark = [pytest.mark.stack, pytest.mark.full]
PROGRAM, NODE, OTHER = "spark-worker-2", "node-2", "node-1"


@pytest.fixture(params=["+1h", "-1h"])
def wrong_clock(request, servers, operator, job) -> Iterator[str]:
    """The second node's worker, and whatever it starts, reads another time of day."""
    first_members(operator)
    on_cluster(operator, "scale_cluster", size=1, nodes=[NODE])  # a worker that is stopped in order ends its driver
    path = servers.layout.supervisor_conf
    right = path.read_text()
    more = ",".join(f'{key}="{value}"' for key, value in other_clock(request.param).items())
    section = re.compile(rf"(\[program:{PROGRAM}\]\n(?:.+\n)*?environment=)")
    path.write_text(section.sub(rf"\g<1>{more},", right, count=1))
    assert path.read_text() != right
    try:
        servers.supervisor.replace(PROGRAM)
        first_members(operator)
        yield request.param
    finally:
        path.write_text(right)
        servers.supervisor.replace(PROGRAM)
        first_members(operator)


def test_order_comes_from_epochs_and_not_from_clocks(job, operator, stack, wrong_clock):
    nodes = SupervisedNodes(stack)
    wait_for(lambda: sum(w.state == "ALIVE" for w in nodes.master().workers) >= 2, 180, "both members")
    start = mark(job)
    on_cluster(operator, "scale_cluster", size=1, nodes=[OTHER])  # everything moves to the other node
    assert hosting(job, nodes) == NODE
    status = job.status()
    assert abs((status.updated - now()).total_seconds()) > 3000, "the clock was not off"
    operator.run("snapshot_job", job.name)
    version = "v2" if job.record().version == "v1" else "v1"
    operator.run("upgrade_job", job.name, version=version)
    on_cluster(operator, "scale_cluster", size=2)
    operator.run("upgrade_job", job.name, version="v1" if version == "v2" else "v2")
    # Spark chooses where the new driver is; for the invariant, which asks whether it spoke lately, it must be here.
    on_cluster(operator, "scale_cluster", size=1, nodes=[NODE])
    assert hosting(job, nodes) == OTHER
    invariant(job, start)
