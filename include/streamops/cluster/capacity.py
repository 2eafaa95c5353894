"""Whether the jobs that run fit on the nodes that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streamops.cluster.nodes import Node
from streamops.model.definitions import Resources
from streamops.model.errors import RefusedError
from streamops.spark.master import Slot
from streamops.spark.submission import executor_cores, mebibytes


@dataclass(frozen=True)
class Need:
    """What a running job needs at least: its driver and one executor. Its ``cores`` are the most that it takes."""

    job: str
    resources: Resources
    spark: Mapping[str, str | int | float | bool] = field(default_factory=dict)


def require_capacity(nodes: Sequence[Node], needs: Sequence[Need]) -> None:
    """Make sure that the running jobs fit on these nodes, each with its driver and one executor at least.

    Raises:
        RefusedError: they do not; the message has the numbers.
    """
    slots = [Slot(node.cores, mebibytes(node.memory)) for node in nodes]
    total = Slot(sum(slot.cores for slot in slots), sum(slot.memory for slot in slots))
    wanted = Slot(0, 0)
    unplaced: list[str] = []
    parts: list[tuple[int, int, str]] = []
    for need in needs:
        each = executor_cores(need.resources, dict(need.spark))
        driver, executor = mebibytes(need.resources.driver_memory), mebibytes(need.resources.executor_memory)
        parts += [(1, driver, need.job), (each, executor, need.job)]
    for cores, memory, job in sorted(parts, reverse=True):
        wanted = Slot(wanted.cores + cores, wanted.memory + memory)
        slot = next((item for item in slots if item.cores >= cores and item.memory >= memory), None)
        if slot is None:
            unplaced.append(job)
            continue
        slot.cores, slot.memory = slot.cores - cores, slot.memory - memory
    if unplaced:
        raise RefusedError(
            f"{len(nodes)} nodes ({', '.join(node.name for node in nodes)}) have {total.cores} cores and "
            f"{total.memory:,} MiB, and the running jobs need at least {wanted.cores} cores and {wanted.memory:,} MiB; "
            f"no place is left for {', '.join(sorted(set(unplaced)))}. Stop a job first, or keep more nodes."
        )
