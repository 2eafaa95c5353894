"""What an operation needs from outside the object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from streamops.cluster.membership import Program
from streamops.cluster.nodes import Inventory
from streamops.model.definitions import Definition, InfluxSink
from streamops.model.errors import NotFoundError
from streamops.model.owner import Owner
from streamops.model.records import Offsets
from streamops.operations.receipts import Receipt
from streamops.spark.master import Master
from streamops.spark.submission import Submission
from streamops.store.object_store import ObjectStore


class Submitter(Protocol):
    """Puts drivers on the cluster."""

    def submit(self, submission: Submission) -> str:
        """Spark's id of the driver, which is only a hint."""

    def end_driver(self, driver: str) -> None:
        """End a driver for good. Raises UnreachableError."""

    def room_for(self, definition: Definition) -> bool:
        """Whether one more driver with all its executors fits beside what runs."""


class LedgerPort(Protocol):
    """What the topics hold."""

    def ensure_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> bool:
        """Make a topic that is not there; whether it was made now."""

    def beginning_offsets(self, topic: str) -> Mapping[str, int]:
        """First offset still kept, by partition. Raises NotFoundError."""

    def end_offsets(self, topic: str) -> Mapping[str, int]:
        """Offset that the next record gets, by partition. Raises NotFoundError."""

    def offsets_at(self, topic: str, time_ms: int) -> Mapping[str, int]:
        """First offset whose record is not older than ``time_ms``, by partition. Raises NotFoundError."""

    def read(
        self, topic: str, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Iterable[tuple[int, int, int, bytes | None]]:
        """As ``read_committed``, also what a transaction wrote that was not committed. Raises NotFoundError."""

    def read_committed(
        self, topic: str, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Iterable[tuple[int, int, int, bytes | None]]:
        """Records with ``start <= offset < end`` as (partition, offset, timestamp in ms, value)."""

    def read_keyed(self, topic: str, start: int, end: int) -> Iterable[tuple[int, bytes, bytes]]:
        """Records of the only partition with ``start <= offset < end`` as (timestamp in ms, key, value)."""

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic with its events; whether it was there."""

    def delete_topics(self, prefix: str) -> Sequence[str]:
        """Delete the topics whose names begin with ``prefix``, which are returned."""


class OwnersPort(Protocol):
    """What is known of owners."""

    def finished(self, owner: Owner) -> bool | None:
        """Whether the owner is certainly over; None when no one knows."""

    def forgotten(self, owner: Owner) -> bool:
        """Whether who would know answers, and knows no such owner: then a person's word that it is gone counts."""


class NodesPort(Protocol):
    """The machines, and what the master says of them. ``name`` is a node's, or ``master``.

    Raises (where a supervisor is asked): UnreachableError, NotFoundError; both name it.
    """

    @property
    def inventory(self) -> Inventory:
        """The nodes there are. Raises NotFoundError, RefusedError."""

    def master(self) -> Master:
        """What the master says; DOWN when it does not answer."""

    def program(self, name: str) -> Program:
        """Whether it runs."""

    def start(self, name: str) -> None:
        """Start it, unless it runs."""

    def stop(self, name: str) -> Program:
        """Stop it and say how it ended, unless it does not run."""

    def decommission(self, name: str) -> None:
        """Let a worker take nothing new."""

    def stateful_tasks(self, page: str, application: str) -> dict[str, int]:
        """How many of the last stateful tasks each executor of an application ran, by executor id."""


def _no_nodes() -> NodesPort:
    raise NotFoundError("This installation has no inventory of nodes; run 'make up' first.")


def _no_results(lines: Sequence[str]) -> None:
    raise NotFoundError("Nothing is written from here.")


def _no_points(sink: InfluxSink, start_ms: int, end_ms: int) -> Sequence[Mapping[str, Any]]:
    raise NotFoundError("No results are read from here.")


@dataclass(frozen=True)
class Ports:
    """Everything that an engine acts through.

    ``retention`` opens the object store with the identity that may delete snapshots and jobs, for what deletes them.
    ``free_bytes`` tells how much room the object store has, where that can be known; ``sinks_answer`` raises
    UnreachableError when results could not be written now, ``write_points`` writes lines as InfluxDB takes them, and
    ``read_points`` gives the columns of each point with ``start_ms <= time < end_ms``, its time and tags among them.
    ``mark`` puts an operation that is over on the dashboards, if it can: it never raises, soon returns, and says in
    one line what went wrong. ``adopt_wait_s`` is how long a retried submission waits for the driver that an earlier
    try may have started.
    """

    store: ObjectStore
    submitter: Submitter
    ledger: LedgerPort
    owners: OwnersPort
    recount: Callable[[str, Offsets | None], dict[str, Any]]
    retention: Callable[[], ObjectStore]
    free_bytes: Callable[[], int | None] = lambda: None
    sinks_answer: Callable[[], None] = lambda: None
    write_points: Callable[[Sequence[str]], None] = _no_results
    read_points: Callable[[InfluxSink, int, int], Sequence[Mapping[str, Any]]] = _no_points
    mark: Callable[[Receipt, Callable[[str], None]], None] = lambda found, say: None
    nodes: Callable[[], NodesPort] = _no_nodes
    adopt_wait_s: float = 40.0
    look_s: float = 0.25
