"""``apply``, ``diff`` and ``delete``: bring the cluster to what files declare, by way of the runbooks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamops import snapshots
from streamops.cli import console, declared, verbs
from streamops.cli.applying import Action, Present, PresentJob, decide
from streamops.cli.declared import Declared, DeclaredCluster, DeclaredJob
from streamops.cluster import record as cluster_record
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.records import Deployment
from streamops.operations.facts import Checked
from streamops.settings import Settings
from streamops.store import documents, jobs, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts

CHANGES = 2  # exit code of diff

File = Annotated[Path, typer.Argument(metavar="FILE", help="YAML documents of kind job, snapshot or cluster.")]


def apply(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="YAML documents of kind job, snapshot or cluster.")
    ],
) -> None:
    """Bring jobs, snapshots and the cluster to what files declare; a second time changes nothing."""
    wanted = [(path, item) for path in files for item in declared.load(path)]  # all are right before one is applied
    for path, item in wanted:
        for action in decide(item, present(console.settings(), item)):
            console.say(shown(action))
            if action.changes:
                carry_out(action, path)


def diff(file: File) -> None:
    """Show what 'apply' would do; exit code 2 if that is anything. Changes nothing."""
    changes = 0
    for item in declared.load(file):
        for action in decide(item, present(console.settings(), item)):
            changes += action.changes
            console.say(shown(action))
    if changes:
        raise typer.Exit(CHANGES)


def delete(
    what: Annotated[str, typer.Argument(metavar="FILE|JOB", help="A job, or a file that declares jobs.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove jobs with their snapshots, checkpoints, versions and logs, and say what was removed."""
    if Path(what).suffix in (".yaml", ".yml"):
        found = [item.name for item in declared.load(Path(what)) if isinstance(item, DeclaredJob)]
        names = list(dict.fromkeys(found))
        if not names:
            raise NotFoundError(f"{what} declares no job; there is nothing to delete.")
    else:
        names = [console.job(what)]
    if not yes and not typer.confirm(f"Delete {', '.join(names)} with all snapshots and checkpoints?"):
        raise RefusedError("Nothing was deleted.")
    for name in names:
        done = verbs.run(False, "delete_job", job=name)
        kinds = {key.removesuffix("_objects"): count for key, count in done.facts("remove").items()}
        told = done.reported("check", Checked)
        console.say(f"{name} is deleted: {', '.join(f'{count:,} objects of {kind}' for kind, count in kinds.items())}.")
        for kind, gone in (("versions", told.versions), ("snapshots", told.snapshots)):
            if gone:
                console.say(f"  {kind}: {', '.join(gone)}")


def shown(action: Action) -> str:
    """One line for each action."""
    return f"{action.verb}: {action.what} ({action.why})" if action.changes else f"unchanged: {action.why}"


def present(settings: Settings, item: Declared) -> Present:
    """What is there, as far as a document needs it."""
    if isinstance(item, DeclaredCluster):
        record = cluster_record.read(ObjectStore(settings))
        wanted = record.wanted(SupervisedNodes(settings).inventory)
        return Present(settings.s3_bucket, len(wanted), cluster=record.state)
    name = item.name if isinstance(item, DeclaredJob) else item.job
    return Present(settings.s3_bucket, 0, {name: present_job(ObjectStore(settings), name)})


def present_job(store: ObjectStore, job: str) -> PresentJob:
    """What is there of one job."""
    found = [documents.read(store, info.key, Deployment) for info in store.list(keys.deployments(job))]
    return PresentJob(
        record=jobs.record(store, job),
        deployments=tuple(item.value for item in found if item),
        published=tuple(artifacts.versions(store, job)),
        snapshots=tuple(entry.name for entry in snapshots.entries(store, job)),  # those that this host cannot check too
    )


def carry_out(action: Action, path: Path) -> None:
    """Do one thing, by way of its runbook."""
    if action.verb == "publish":
        job, directory = action.values["job"], path.parent / action.values["code"]
        made = artifacts.publish(console.store(), directory, action.values["version"], job=job)
        console.say(f"  published {made.job} {made.version} ({made.artifact_sha256[:12]})")
        return
    done = verbs.run(False, action.verb, **action.values)
    console.say(f"  done ({done.id})")
