"""The runbooks, one file each: what may be asked for, the steps in order with what each does, and the way back.

May import ``operations`` and what that may. A new runbook is such a file, its name in ``RUNBOOKS``, a DAG that is
``runbook_dag(...)``, and a test.
"""

from streamops.model.errors import NotFoundError
from streamops.operations.operation import Operation, Request
from streamops.operations.runbook import Runbook
from streamops.operations.runbooks.apply_retention import APPLY_RETENTION
from streamops.operations.runbooks.cancel_job import CANCEL_JOB
from streamops.operations.runbooks.delete_job import DELETE_JOB
from streamops.operations.runbooks.deploy_job import DEPLOY_JOB
from streamops.operations.runbooks.manage_quarantine import MANAGE_QUARANTINE
from streamops.operations.runbooks.manage_snapshot import MANAGE_SNAPSHOT
from streamops.operations.runbooks.pause_job import PAUSE_JOB
from streamops.operations.runbooks.rehearse_job import REHEARSE_JOB
from streamops.operations.runbooks.restart_cluster import RESTART_CLUSTER
from streamops.operations.runbooks.restore_job import RESTORE_JOB
from streamops.operations.runbooks.rollback_job import ROLLBACK_JOB
from streamops.operations.runbooks.scale_cluster import SCALE_CLUSTER
from streamops.operations.runbooks.schedule_job import SCHEDULE_JOB
from streamops.operations.runbooks.set_log_levels import SET_LOG_LEVELS
from streamops.operations.runbooks.settle_operation import SETTLE_OPERATION
from streamops.operations.runbooks.shutdown_cluster import SHUTDOWN_CLUSTER
from streamops.operations.runbooks.snapshot_job import SNAPSHOT_JOB
from streamops.operations.runbooks.start_job import RECOVER_JOB, START_JOB
from streamops.operations.runbooks.upgrade_job import UPGRADE_JOB

__all__ = ["ALL", "RUNBOOKS", "find", "of"]

# Those with a DAG. Reconciliation alone asks for recover_job, and the DAG for all jobs for apply_retention of each.
RUNBOOKS: dict[str, Runbook] = {
    runbook.name: runbook
    for runbook in (
        DEPLOY_JOB,
        START_JOB,
        SNAPSHOT_JOB,
        CANCEL_JOB,
        REHEARSE_JOB,
        UPGRADE_JOB,
        ROLLBACK_JOB,
        RESTORE_JOB,
        DELETE_JOB,
        MANAGE_SNAPSHOT,
        MANAGE_QUARANTINE,
        PAUSE_JOB,
        SCHEDULE_JOB,
        SET_LOG_LEVELS,
        SETTLE_OPERATION,
        SHUTDOWN_CLUSTER,
        RESTART_CLUSTER,
        SCALE_CLUSTER,
    )
}
ALL = {**RUNBOOKS, RECOVER_JOB.name: RECOVER_JOB, APPLY_RETENTION.name: APPLY_RETENTION}


def find(name: str) -> Runbook:
    """A runbook by its name. Raises NotFoundError."""
    if name not in ALL:
        raise NotFoundError(f"There is no runbook {name!r}; there are {', '.join(sorted(ALL))}.")
    return ALL[name]


def of(operation: Operation | Request) -> Runbook:
    """The runbook of an operation or a request."""
    return find((operation.request if isinstance(operation, Operation) else operation).runbook)
