"""What should be of the cluster: its nodes, whether it was shut down on purpose, and the jobs that ran then.

Beside it lies a copy of the inventory, for hosts that look at the cluster and do not act on its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from streamops.cluster.nodes import Inventory
from streamops.model.errors import NotFoundError
from streamops.model.stored import Stored
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore

State = Literal["running", "stopping", "stopped", "starting"]


class ClusterRecord(Stored):
    """Written only by operations on the cluster, conditionally."""

    state: State = "running"
    nodes: tuple[str, ...] = ()  # that should be members; empty means: those of the inventory that are not spare
    jobs: tuple[str, ...] = ()  # that ran when it was shut down; a restart brings back exactly these
    library: str | None = None  # LIBRARY/VERSION that the restart brings the jobs back on, as the shutdown was told
    changed_by: str = ""  # operation id

    def wanted(self, inventory: Inventory) -> tuple[str, ...]:
        """The nodes that should be members, in the order of the inventory; those that left it are gone."""
        names = self.nodes or inventory.initial()
        return tuple(name for name in inventory.names() if name in names)


class PublishedInventory(Stored):
    """Written by the stack when it starts. No one acts on a node by it: that takes a file, and a password."""

    inventory: Inventory


def publish_inventory(store: ObjectStore, inventory: Inventory) -> None:
    """Let every host of the installation know the nodes, whatever is there."""
    documents.write(store, keys.INVENTORY, PublishedInventory(inventory=inventory))


def published_inventory(store: ObjectStore) -> Inventory:
    """The nodes as the stack knew them when it started last. Raises NotFoundError."""
    if found := documents.find(store, keys.INVENTORY, PublishedInventory):
        return found.inventory
    raise NotFoundError(
        "The nodes of this installation are not in its object store; its stack puts them there when it starts "
        "('make down', then 'make up')."
    )


def read(store: ObjectStore) -> ClusterRecord:
    """The record; that of a cluster that was never operated on when there is none."""
    return documents.find(store, keys.CLUSTER_RECORD, ClusterRecord) or ClusterRecord()


def change(store: ObjectStore, update: Mapping[str, object]) -> ClusterRecord:
    """Set fields of the record; for the holder of the cluster's operation lock. Setting them again changes nothing.

    Raises:
        ConflictError: others kept changing it.
    """

    def changed(old: ClusterRecord | None) -> ClusterRecord:
        return (old or ClusterRecord()).model_copy(update=dict(update))

    return documents.update(store, keys.CLUSTER_RECORD, ClusterRecord, changed).value
