"""Cluster membership: who is there, who should be, who leaves first, and whether the jobs still fit. Nothing here acts.

All sizes of memory are in MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from streamops.cluster.nodes import Inventory
from streamops.model.errors import RefusedError
from streamops.spark.master import Master

RUNNING = frozenset({"RUNNING", "STARTING"})  # supervisord's words for a program that should be up


@dataclass(frozen=True)
class Program:
    """A supervised program: supervisord's word for its state, and its exit status once it has ended."""

    state: str
    exit_status: int = 0
    detail: str = ""

    @property
    def up(self) -> bool:
        return self.state in RUNNING


def present(inventory: Inventory, master: Master) -> tuple[str, ...]:
    """Names of the nodes whose worker has joined and takes work."""
    found = ((node.name, master.worker(node.page)) for node in inventory.nodes)
    return tuple(name for name, worker in found if worker is not None and worker.state == "ALIVE")


def missing(inventory: Inventory, master: Master, wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of the wanted nodes that have not joined."""
    here = present(inventory, master)
    return tuple(name for name in wanted if name not in here)


@dataclass(frozen=True)
class Change:
    """What a scaling does: ``start`` and ``stop`` are names of nodes."""

    size: int
    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """What to scale to: one of these, or ``named`` together with a size that goes with it.

    Args:
        size: the number of members to reach.
        by: or how many more, or fewer.
        named: these nodes join, when they are spare, or leave, when they are members.
    """

    size: int | None = None
    by: int | None = None
    named: Sequence[str] = ()


def change(inventory: Inventory, wanted: Sequence[str], drivers: Mapping[str, int], target: Target) -> Change:
    """Which nodes join or leave.

    Args:
        wanted: the nodes that should be members now.
        drivers: how many drivers each node hosts; those with the fewest leave first, the last of the inventory
            first among equals.

    Raises:
        RefusedError: an unknown node, a size of 0 or above the inventory, or names that do not go with the size.
    """
    joining, leaving = _named(inventory, wanted, target.named)
    size = _size(inventory, len(wanted), target, len(joining) - len(leaving))
    more = size - len(wanted)
    if target.named:
        _require_match(size, more, joining, leaving)
    if more >= 0:
        spare = joining or [name for name in inventory.names() if name not in wanted]
        return Change(size, start=tuple(spare[:more]))
    order = {name: at for at, name in enumerate(inventory.names())}
    first = sorted(wanted, key=lambda name: (drivers.get(name, 0), -order.get(name, len(order))))
    return Change(size, stop=tuple(leaving or first[:-more]))


def _named(inventory: Inventory, wanted: Sequence[str], named: Sequence[str]) -> tuple[list[str], list[str]]:
    """Which of the named nodes would join, and which would leave: not both."""
    for name in named:
        inventory.node(name)
    if len(set(named)) != len(named):
        raise RefusedError(f"A node is named twice: {', '.join(named)}.")
    joining = [name for name in named if name not in wanted]
    leaving = [name for name in named if name in wanted]
    if joining and leaving:
        raise RefusedError(
            f"{', '.join(leaving)} would leave and {', '.join(joining)} would join; scale in two operations."
        )
    return joining, leaving


def _size(inventory: Inventory, members: int, target: Target, by_name: int) -> int:
    """The size to reach, if a cluster of this inventory can have it."""
    if target.size is None and target.by is None and not target.named:
        raise RefusedError("Say what to scale to: a size, +n or -n, or names of nodes.")
    by = by_name if target.by is None else target.by
    size = members + by if target.size is None else target.size
    if size < 1:
        raise RefusedError(
            f"A cluster of {size} nodes runs nothing; to stop it, use shutdown_cluster ('streamops cluster shutdown')."
        )
    if size > len(inventory.nodes):
        raise RefusedError(
            f"{size} members are asked for, but the inventory has {len(inventory.nodes)} nodes "
            f"({', '.join(inventory.names())}); add nodes to it first."
        )
    return size


def _require_match(size: int, more: int, joining: list[str], leaving: list[str]) -> None:
    """Refuse names that do not lead to the size."""
    named = joining or leaving
    if len(named) != abs(more):
        raise RefusedError(f"{len(named)} nodes are named, but {abs(more)} would have to change for a size of {size}.")
    if (more > 0) != bool(joining):
        raise RefusedError(
            f"For a size of {size} nodes {'join' if more > 0 else 'leave'}, "
            f"but {', '.join(named)} {'are spare' if joining else 'are members'}."
        )
