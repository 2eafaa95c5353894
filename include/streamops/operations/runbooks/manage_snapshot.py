"""Pin a snapshot or unpin it, remove it or bring it back, or import one from another installation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from streamops import snapshots
from streamops.model.definitions import SnapshotName
from streamops.model.errors import NotFoundError, RefusedError, SnapshotRefusedError
from streamops.model.manifest import Manifest
from streamops.operations import needs, steps
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked, Managed
from streamops.operations.requests import JobRequest
from streamops.operations.runbook import Step
from streamops.snapshots import catalogue, marks, portable, removal
from streamops.store import keys

Action = Literal["pin", "unpin", "remove", "undelete", "import"]


class ManageSnapshot(JobRequest):
    """What may be asked for."""

    runbook: Literal["manage_snapshot"] = "manage_snapshot"
    action: Annotated[
        Action,
        Field(
            title="Action",
            description="pin: retention keeps it. unpin: the rule decides again. remove: for 14 days, undelete brings "
            "it back. import: from an archive that 'streamops snapshots import' has uploaded.",
        ),
    ]
    snapshot: Annotated[SnapshotName, Field(title="Snapshot", description="Its name; of an import, as in the archive.")]
    reason: Annotated[
        str | None, Field(max_length=500, title="Reason", description="Why it is pinned or removed, for the record.")
    ] = None
    archive: Annotated[
        str | None,
        Field(
            pattern=r"^[0-9a-f]{64}$",
            title="Archive",
            description="For import: the SHA-256 of the file, which that command has uploaded and fills in.",
        ),
    ] = None
    trust: Annotated[
        bool, Field(title="Trust", description="For import: accept it although another installation signed it.")
    ] = False

    @model_validator(mode="after")
    def _of_an_import(self) -> ManageSnapshot:
        if (self.action == "import") != (self.archive is not None):
            raise ValueError("archive: goes with the action import, which needs one")
        if self.trust and self.archive is None:
            raise ValueError("trust: goes with the action import")
        return self


def check(context: StepContext) -> Checked:
    """Refuse what cannot be done. Raises NotFoundError, RefusedError, SnapshotRefusedError, SnapshotExistsError."""
    asked = context.asked(ManageSnapshot)
    return Checked(snapshot=asked.snapshot, unchanged=_CAN[asked.action](context, asked.snapshot))


def change(context: StepContext) -> Managed:
    """Do it."""
    asked = context.asked(ManageSnapshot)
    if context.checked.unchanged:
        context.say(f"Snapshot {context.job}/{asked.snapshot} is as it should be; nothing was to be done")
        return Managed(snapshot=asked.snapshot)
    return _DO[asked.action](context, asked.snapshot)


# --- what each action needs; True where nothing is to be done


def _there(context: StepContext, name: str) -> bool:
    snapshots.load(context.ports.store, context.job, name)
    return False


def _not_pinned(context: StepContext, name: str) -> bool:
    return marks.pinned(context.ports.store, context.job, name) is None


def _not_needed(context: StepContext, name: str) -> bool:
    store, job = context.ports.store, context.job
    if not store.exists(keys.manifest(job, name)):  # one that is refused may go as well
        raise catalogue.missing(job, name)
    pin = marks.pinned(store, job, name)
    needed = needs.users(store, but=context.operation.id).get((job, name), ())
    if pin or needed:
        what = f"pinned ({pin.reason})" if pin else f"in use by {', '.join(needed)}"
        raise RefusedError(f"Snapshot {job}/{name} is {what}; it is kept.")
    return False


def _was_removed(context: StepContext, name: str) -> bool:
    removal.record_of(context.ports.store, context.job, name)
    return False


def _can_be_imported(context: StepContext, name: str) -> bool:
    asked, store = context.asked(ManageSnapshot), context.ports.store
    archive, called = _archive(context)
    if not store.exists(archive):
        raise NotFoundError(f"There is no {called} in the bucket; 'streamops snapshots import FILE' uploads it.")
    with store.opened(archive) as source:
        found = portable.origin(store, source, called, trust=asked.trust)
    if (found.job, found.name) != (context.job, name):
        raise SnapshotRefusedError(f"The {called} holds {found.job}/{found.name}, not {context.job}/{name}.")
    return False


def _archive(context: StepContext) -> tuple[str, str]:
    """The key of the archive, and what messages call it."""
    sha256 = context.asked(ManageSnapshot).archive or ""
    return keys.snapshot_upload(context.job, sha256), f"archive {sha256[:12]}"


# --- what each does; again after a kill anywhere, it finds what is done


def _pin(context: StepContext, name: str) -> Managed:
    reason, by = context.asked(ManageSnapshot).reason or "kept by hand", context.operation.owner.user
    marks.pin(context.ports.store, context.job, name, reason, by)
    context.say(f"Snapshot {context.job}/{name} is pinned: {reason}")
    return Managed(snapshot=name)


def _unpin(context: StepContext, name: str) -> Managed:
    marks.unpin(context.ports.retention(), context.job, name)
    context.say(f"Snapshot {context.job}/{name} is no longer pinned")
    return Managed(snapshot=name)


def _remove(context: StepContext, name: str) -> Managed:
    store, job = context.ports.retention(), context.job
    if context.ports.store.exists(keys.manifest(job, name)):
        _not_needed(context, name)  # a fork may have begun since the check, which days may have passed since
    removal.remove(store, job, name, context.asked(ManageSnapshot).reason or "by hand", context.operation.owner.label())
    context.say(f"Snapshot {job}/{name} is removed; it can be brought back for {removal.KEPT.days} days")
    return Managed(snapshot=name)


def _undelete(context: StepContext, name: str) -> Managed:
    store, job = context.ports.retention(), context.job
    try:
        found = snapshots.undelete(store, job, name)
    except NotFoundError:  # an earlier try has brought it back
        found = snapshots.load(context.ports.store, job, name)
        store.delete([keys.removed_snapshot(job, name)])
    context.say(f"Snapshot {job}/{name} is back")
    return _whole(found)


def _import(context: StepContext, name: str) -> Managed:
    asked, store = context.asked(ManageSnapshot), context.ports.store
    archive, called = _archive(context)
    if not store.exists(archive):  # an earlier try has come to its end
        return _whole(snapshots.load(store, context.job, name))
    with store.opened(archive) as source:
        done = portable.load(store, source, called, trust=asked.trust)
    retention = context.ports.retention()
    retention.delete_versions(retention.versions(archive))
    context.say(
        f"Snapshot {context.job}/{name} is here: {done.objects} objects brought, {done.skipped} were there already; "
        f"version {done.manifest.version} {'is published now' if done.published else 'was published already'}"
    )
    return _whole(done.manifest).model_copy(
        update={"objects": done.objects, "skipped": done.skipped, "published": done.published}
    )


def _whole(found: Manifest) -> Managed:
    return Managed(snapshot=found.name, objects=len(found.objects), bytes=found.size, version=found.version)


_CAN: dict[str, Callable[[StepContext, str], bool]] = {
    "pin": _there,
    "unpin": _not_pinned,
    "remove": _not_needed,
    "undelete": _was_removed,
    "import": _can_be_imported,
}
_DO: dict[str, Callable[[StepContext, str], Managed]] = {
    "pin": _pin,
    "unpin": _unpin,
    "remove": _remove,
    "undelete": _undelete,
    "import": _import,
}


MANAGE_SNAPSHOT = steps.at_once(
    ManageSnapshot,
    Step("check", "check", "Check the request against the snapshot, and who needs it", check),
    Step("change", "check", "Pin, unpin, remove, bring back or import it", change),
    begun="it may be done: 'streamops snapshots' says so",
)
