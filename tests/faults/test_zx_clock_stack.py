"""Fault 31: the clock of the node that hosts driver and executors is an hour off."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from fakes.clock import other_clock
from fresh_job import wait_for
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.records import now
from support import first_members, hosting, invariant, mark, on_cluster

pytestmark = [pytest.mark.stack, pytest.mark.long]
CLOCKS = {"node-2": ("spark-worker-2", "+1h"), "node-3": ("spark-worker-3", "-1h")}


@pytest.fixture
def wrong_clocks(servers, operator, job) -> Iterator[None]:
    """The second and the third node's workers, and whatever they start, read other times of day."""
    first_members(operator)
    on_cluster(operator, "scale_cluster", size=1, nodes=["node-2"])  # a worker that is stopped in order ends its driver
    path = servers.layout.supervisor_conf
    right = changed = path.read_text()
    for program, clock in CLOCKS.values():
        more = ",".join(f'{key}="{value}"' for key, value in other_clock(clock).items())
        section = re.compile(rf"(\[program:{program}\]\n(?:.+\n)*?environment=)")
        changed, count = section.subn(rf"\g<1>{more},", changed, count=1)
        assert count == 1
    path.write_text(changed)
    try:
        for program, _ in CLOCKS.values():
            servers.supervisor.replace(program)
        yield
    finally:
        path.write_text(right)
        for program, _ in CLOCKS.values():
            servers.supervisor.replace(program)
        first_members(operator)


def test_order_comes_from_epochs_and_not_from_clocks(job, operator, stack, wrong_clocks):
    """The job moves to a clock that is ahead, from there to one that is behind, and back to the right one."""
    nodes, start, left = SupervisedNodes(stack), mark(job), "node-1"
    for node, sign in (("node-2", 1), ("node-3", -1)):
        on_cluster(operator, "scale_cluster", nodes=[node], change=1)
        wait_for(lambda: sum(w.state == "ALIVE" for w in nodes.master().workers) >= 2, 180, "both members")
        on_cluster(operator, "scale_cluster", size=1, nodes=[left])  # everything moves
        assert hosting(job, nodes) == node
        assert sign * (job.status().updated - now()).total_seconds() > 3000, "the clock was not off"
        operator.run("snapshot_job", job.name)
        operator.run("upgrade_job", job.name, version="v2" if job.record().version == "v1" else "v1")
        left = node
    # For the invariant, which asks whether the driver spoke lately, it must be on a node with the right time.
    on_cluster(operator, "scale_cluster", nodes=["node-1"], change=1)
    on_cluster(operator, "scale_cluster", size=1, nodes=[left])
    assert hosting(job, nodes) == "node-1"
    invariant(job, start)
