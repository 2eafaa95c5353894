"""``apply``, ``diff``, ``get`` and ``delete``: bring the cluster to what files declare, by way of the runbooks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from streamops import snapshots
from streamops.cli import cluster as cluster_command
from streamops.cli import console, declared, verbs
from streamops.cli import jobs as jobs_command
from streamops.cli.applying import Action, Present, PresentJob, PresentTopic, decide, decide_removal
from streamops.cli.declared import Declared, DeclaredCluster, DeclaredJob, DeclaredTopic
from streamops.clients.kafka import Ledger
from streamops.cluster import record as cluster_record
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model import definitions
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.records import Deployment
from streamops.operations.facts import Checked
from streamops.settings import Settings
from streamops.store import documents, jobs, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, code

CHANGES = 2  # exit code of diff
ABSENT = "not there"

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="YAML documents of kind topic, job, snapshot or cluster; - is stdin."),
]
More = Annotated[list[str] | None, typer.Option("-f", "--file", metavar="FILE", help="A file; - is stdin. Repeatable.")]


def apply(files: Files = None, file: More = None) -> None:
    """Bring topics, jobs, snapshots and the cluster to what files declare; a second run changes nothing."""
    for beside, item in read(files, file):
        for action in decide(item, present(console.settings(), [item])):
            console.say(shown(action))
            if action.changes:
                carry_out(action, beside)


def diff(files: Files = None, file: More = None) -> None:
    """Show what 'apply' would do; exit code 2 if there is anything to do. Changes nothing."""
    changes = 0
    for _, item in read(files, file):
        for action in decide(item, present(console.settings(), [item])):
            changes += action.changes
            console.say(shown(action))
    if changes:
        raise typer.Exit(CHANGES)


def get(files: Files = None, file: More = None, json: console.Json = False) -> None:
    """Show the state of what files declare. Exit code 1 if any of it is missing."""
    items, settings = [item for _, item in read(files, file)], console.settings()
    store, found = ObjectStore(settings), dict[str, list[dict[str, object]]]()
    each = dict.fromkeys((item.kind, getattr(item, "job", ""), getattr(item, "name", "")) for item in items)
    for kind, job, name in each:  # once, whatever number of files declares it
        found.setdefault(kind, []).append(_LOOKS[kind](settings, store, job, name))
    if json:
        console.show_json(found)
    else:
        for rows in found.values():
            columns = {key.upper(): lambda row, key=key: row[key] for key in rows[0]}
            console.show_rows(rows, columns, json=False)
    if any(row["state"] == ABSENT for rows in found.values() for row in rows):
        raise typer.Exit(1)


def delete(
    what: Annotated[list[str] | None, typer.Argument(metavar="FILE|JOB", help="Jobs, or files as for 'apply'.")] = None,
    file: More = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove what files declare, or jobs, and say what was removed.

    Jobs go with their snapshots, checkpoints, versions and logs, and with the topics that the files declare. Where a
    file declares the cluster, it is shut down.
    """
    names = [console.job(word) for word in what or () if not _is_file(word)]
    files = [word for word in what or () if _is_file(word)]
    items = [item for _, item in read(files, file)] if files or file else []
    if not names and not items:
        raise RefusedError("Nothing is named; say which job, or which file.")
    planned = decide_removal(items, present(console.settings(), items))
    actions = [Action("delete_job", name, "", {"job": name}) for name in names] + [*planned]
    todo = [action for action in actions if action.changes]
    for action in planned:
        console.say(shown(action))
    if todo and not yes and not typer.confirm(f"Really: {'; '.join(f'{item.verb} {item.what}' for item in todo)}?"):
        raise RefusedError("Nothing was deleted.")
    for action in todo:
        if action.verb == "delete_job":
            _delete_job(action)
        else:
            carry_out(action, Path())


def _is_file(word: str) -> bool:
    return Path(word).suffix in (".yaml", ".yml")


def _delete_job(action: Action) -> None:
    name = action.values["job"]
    done = verbs.run(False, action.verb, **action.values)
    kinds = {key.removesuffix("_objects"): count for key, count in done.facts("remove").items()}
    told = done.reported("check", Checked)
    console.say(f"{name} is deleted: {', '.join(f'{count:,} objects of {kind}' for kind, count in kinds.items())}.")
    named = (("versions", told.versions), ("snapshots", told.snapshots), ("topics", action.values.get("topics", ())))
    for kind, gone in named:
        if gone:
            console.say(f"  {kind}: {', '.join(gone)}")


def read(files: Iterable[str] | None, more: Iterable[str] | None) -> list[tuple[Path, Declared]]:
    """All documents of all files, each with the directory that its paths begin in. All are right, or none is used.

    Raises:
        DefinitionError: a file cannot be read, or is wrong.
        RefusedError: no file is named.
    """
    names = [*(files or ()), *(more or ())]
    if not names:
        raise RefusedError("No file is named; say -f FILE, or -f - to read what is typed or piped.")
    found: list[tuple[Path, Declared]] = []
    for name in names:
        piped, path = name == "-", Path(name)
        text = sys.stdin.read() if piped else definitions.text_of(path)
        beside = Path() if piped else path.parent
        found += [(beside, item) for item in declared.parse(text, "stdin" if piped else path.name)]
    return found


def shown(action: Action) -> str:
    """One line for each action."""
    return f"{action.verb}: {action.what} ({action.why})" if action.changes else f"unchanged: {action.why}"


def present(settings: Settings, items: Iterable[Declared]) -> Present:
    """What is there, as far as documents need it."""
    store, members, state = ObjectStore(settings), 0, "running"
    there: dict[str, PresentJob] = {}
    topics: dict[str, PresentTopic] = {}
    for item in items:
        if isinstance(item, DeclaredCluster):
            record = cluster_record.read(store)
            members, state = len(record.wanted(SupervisedNodes(settings).inventory)), record.state
        elif isinstance(item, DeclaredTopic):
            if found := present_topic(settings, item.name):
                topics[item.name] = found
        else:
            name = item.name if isinstance(item, DeclaredJob) else item.job
            there[name] = present_job(store, name)
    return Present(settings.s3_bucket, members, there, state, topics)


def present_topic(settings: Settings, topic: str) -> PresentTopic | None:
    """A topic as it is; None when it is not there."""
    with closing(Ledger(settings)) as ledger:
        try:
            return PresentTopic(len(ledger.end_offsets(topic)), ledger.retention_ms(topic))
        except NotFoundError:
            return None


def present_job(store: ObjectStore, job: str) -> PresentJob:
    """What is there of one job."""
    return PresentJob(
        record=jobs.record(store, job),
        deployments=tuple(documents.every(store, keys.deployments(job), Deployment)),
        published=tuple(artifacts.versions(store, job)),
        snapshots=tuple(entry.name for entry in snapshots.entries(store, job)),  # those that this host cannot check too
        reads=frozenset(artifacts.topics_read(store, job)),
    )


def carry_out(action: Action, beside: Path) -> None:
    """Do one thing: by way of its runbook, unless it only adds what nothing uses yet.

    Args:
        beside: the directory that paths of the file begin in.
    """
    if action.verb == "publish":
        job, version = action.values["job"], action.values["version"]
        with code.directory(action.values["code"], action.values["secret"], beside) as place:
            made = artifacts.publish(console.store(), place, version, job=job)
        console.say(f"  published {made.job} {made.version} ({made.artifact_sha256[:12]})")
        return
    if action.verb == "create_topic":
        with closing(Ledger(console.settings())) as ledger:
            ledger.ensure_topic(action.values["topic"], action.values["partitions"], action.values["config"])
        console.say("  done")
        return
    done = verbs.run(False, action.verb, **action.values)
    console.say(f"  done ({done.id})")


# --- one row of 'get' for each kind


def _topic_row(settings: Settings, store: ObjectStore, job: str, name: str) -> dict[str, object]:
    found = present_topic(settings, name)
    if found is None:
        return {"name": name, "state": ABSENT, "partitions": "-", "retention": "-"}
    kept = "for ever" if found.retention_ms < 0 else console.duration(found.retention_ms / 1000)
    return {"name": name, "state": "there", "partitions": found.partitions, "retention": kept}


def _job_row(settings: Settings, store: ObjectStore, job: str, name: str) -> dict[str, object]:
    shown = ("state", "id", "submitted", "completed", "version")
    found = jobs_command.overview(store, name) if name in jobs.names(store) else {}
    if not found or jobs_command.is_gone(found):
        found = {**dict.fromkeys(shown, "-"), "state": ABSENT}
    return {"name": name, **{key: found[key] for key in shown}}


def _snapshot_row(settings: Settings, store: ObjectStore, job: str, name: str) -> dict[str, object]:
    entry = next((item for item in snapshots.entries(store, job) if item.name == name), None)
    if entry is None:
        return {"name": name, "state": ABSENT, "created": "-", "job": job}
    made = entry.manifest
    state = "exported" if made else f"refused: {entry.refused}"
    return {"name": name, "state": state, "created": console.when(made.created if made else entry.written), "job": job}


def _cluster_row(settings: Settings, store: ObjectStore, job: str, name: str) -> dict[str, object]:
    found = cluster_command.look(settings, store)
    return {"name": "cluster", "state": found.state, "members": f"{found.ready}/{found.desired}"}


_LOOKS: dict[str, Callable[[Settings, ObjectStore, str, str], dict[str, object]]] = {
    "topic": _topic_row,
    "job": _job_row,
    "snapshot": _snapshot_row,
    "cluster": _cluster_row,
}
