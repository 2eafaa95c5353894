"""``check``: what becomes of each stage's state, before anything is touched, with or without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import ValidationError
from rich.markup import escape

from streamops import snapshots
from streamops.cli import console
from streamops.model.definitions import Definition, Param
from streamops.model.errors import DefinitionError, NotFoundError, RefusedError
from streamops.model.names import checked
from streamops.operations import moving
from streamops.store import jobs
from streamops.versions import artifacts, compatibility, fingerprints, libraries, verdicts
from streamops.versions.artifacts import ArtifactManifest
from streamops.versions.compatibility import Outcome, Verdict
from streamops.versions.fingerprints import Fingerprint


class Side(NamedTuple):
    """A version: what its state is made of, and where it reads by what was set at deploy."""

    name: str
    stages: Mapping[str, Fingerprint | None]
    definition: Definition
    places: Mapping[str, str] = {}


_COLOURS: dict[Outcome, str] = {
    "kept": "green",
    "kept with caveat": "yellow",
    "refilled": "cyan",
    "starts empty": "cyan",
    "dropped": "magenta",
    "unknown": "bold magenta",
    "incompatible": "bold red",
}


def check(
    target: Annotated[str, typer.Argument(metavar="JOB|DIR", help="A deployed job; or with --against, a directory.")],
    version: Annotated[str | None, typer.Argument(metavar="VERSION", help="The version that would continue.")] = None,
    from_snapshot: Annotated[
        str | None, typer.Option("--from", metavar="SNAP", help="Compare with this snapshot (NAME or JOB/NAME).")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="JOB|PATH", help="Check the directory against what JOB runs, or against VERSION.yaml of another."
        ),
    ] = None,
    accept_loss: Annotated[
        list[str] | None, typer.Option("--accept-loss", metavar="STAGE", help="As for upgrade; repeatable.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Say what happens to each stage's state in another version.

    Exit code 1 if an upgrade would be refused. With --against PATH no server is asked.
    """
    if against is not None:
        if from_snapshot is not None:
            raise RefusedError("--against compares with a version and --from with a snapshot; give one of them.")
        old, new = _against(against), _directory(Path(target), version)
        old_name, new_name = old.name, new.name
        moved = verdicts.moved(old.definition, old.places, new.definition, old.places)
        found = verdicts.of_stages(old.stages, old.definition, new.stages, new.definition, moved)
    else:
        if version is None:
            raise RefusedError("Name the version to check ('streamops check JOB VERSION'), or give --against.")
        old_name, new_name, found = _published(console.job(target), version, from_snapshot)
    _show(old_name, new_name, found, accept_loss or [], json)


def _published(job: str, version: str, from_snapshot: str | None) -> tuple[str, str, tuple[Verdict, ...]]:
    store = console.store()
    new = artifacts.load_manifest(store, job, version)
    name = f"{job} {version}"
    record = jobs.record(store, job)
    deployed = jobs.deployment(store, job, record.deployment) if record and record.deployment else None
    params: dict[str, Param] = {}
    if from_snapshot is not None:
        other, _, snapshot = from_snapshot.rpartition("/")
        manifest = snapshots.load(store, other or job, checked("snapshot", snapshot))
        of = moving.taken_of(store, manifest)
        changed = verdicts.moved(*of, new.definition, {}) if of else {}
        found = verdicts.of_snapshot(store, manifest, new, params, changed)
        return f"snapshot {manifest.job}/{manifest.name}", name, found
    if deployed is None:
        raise NotFoundError(f"There is no deployed job {job}; check a snapshot (--from), or a directory (--against).")
    old = artifacts.load_manifest(store, job, deployed.version)
    params = {key: value for key, value in deployed.params.items() if key in new.definition.params}
    changed = verdicts.moved(old.definition, deployed.topics, new.definition, deployed.topics)
    return f"{job} {deployed.version}", name, verdicts.of_deployment(old, deployed.params, new, params, changed)


def _against(against: str) -> Side:
    """The old side: a path, or a job whose deployed (else newest published) version counts."""
    path = Path(against)
    if path.suffix == ".json" and path.is_file():
        return _file(path)
    if path.is_file():
        return _directory(path.parent, path.stem)
    if path.is_dir():
        return _directory(path, None)
    job, store = console.job(against), console.store()
    record = jobs.record(store, job)
    if record and record.deployment:
        deployed = jobs.deployment(store, job, record.deployment)
        manifest = artifacts.load_manifest(store, job, deployed.version)
        stages = verdicts.known(manifest, deployed.params)
        return Side(f"{job} {manifest.version}", stages, manifest.definition, deployed.topics)
    known = artifacts.versions(store, job)
    if not known:
        raise NotFoundError(f"There is neither a job nor a file {against}; name a job, VERSION.yaml or its directory.")
    manifest = artifacts.load_manifest(store, job, known[-1])
    return Side(f"{job} {manifest.version}", verdicts.known(manifest, {}), manifest.definition)


def _file(path: Path) -> Side:
    try:
        manifest = ArtifactManifest.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise DefinitionError(f"{path} is no manifest of a published version; give one or VERSION.yaml.") from error
    return Side(f"{manifest.job} {manifest.version}", verdicts.known(manifest, {}), manifest.definition)


def _directory(directory: Path, version: str | None) -> Side:
    """A version that need not be published: its plans are built here."""
    if not directory.is_dir():
        raise NotFoundError(f"{directory} is not a directory; give the directory that holds VERSION.yaml.")
    definition, _ = artifacts.collect(directory, version)
    library = libraries.beside(directory, definition.library) if definition.library else None
    plans = artifacts.plans(directory, definition.version, library, gives_way=True)
    return Side(f"{definition.job} {definition.version}", fingerprints.read(plans, definition.stages), definition)


def _show(old: str, new: str, found: tuple[Verdict, ...], accepted: list[str], json: bool) -> None:
    against = compatibility.refused(found, accepted)
    if json:
        shown: dict[str, Any] = {"from": old, "to": new, "accepted": not against}
        console.show_json(shown | {"verdicts": [item.model_dump(mode="json") for item in found]})
    else:
        console.out.print(f"[bold]{escape(old)}[/] to [bold]{escape(new)}[/]")
        rows = console.table("STAGE", "VERDICT", "WHY", "WHAT FOLLOWS")
        for column in rows.columns[2:]:
            column.no_wrap, column.overflow = False, "fold"
        rows.padding = (0, 2, 0, 0)
        for item in found:
            verdict = f"[{_COLOURS[item.outcome]}]{item.outcome}[/]"
            rows.add_row(item.stage, verdict, escape(" ".join(item.reasons)), escape(item.consequence))
        console.out.print(rows, soft_wrap=False)
        console.say(_last(against))
    if against:
        raise typer.Exit(1)


def _last(against: tuple[Verdict, ...]) -> str:
    never = [item.stage for item in against if item.outcome == "incompatible"]
    if never:
        return f"An upgrade would be refused: {', '.join(never)} cannot continue its state."
    if against:
        options = " ".join(f"--accept-loss {item.stage}" for item in against)
        return f"An upgrade would be refused unless you accept the loss of state: {options}"
    return "An upgrade would be accepted."
