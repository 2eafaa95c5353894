"""A pass of reconciliation in the process of a test, as the tasks of its run carry it out."""

from __future__ import annotations

from streamops.model.errors import StreamOpsError
from streamops.upkeep.reconciler import Reconciler


def one_pass(reconciler: Reconciler) -> None:
    """Carry all of the plan out, one after another. Raises the first trouble, after the others had their turn."""
    plan, troubles = reconciler.plan(), []
    for item in plan:
        try:
            reconciler.heal(item)
        except StreamOpsError as error:
            troubles.append(error)
    if troubles:
        raise troubles[0]
