"""Verdicts on real versions: which fingerprints count, what is said, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from streamops.model.definitions import Definition, Param
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.manifest import Manifest
from streamops.model.records import Move
from streamops.store import jobs
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, compatibility, fingerprints
from streamops.versions.artifacts import ArtifactManifest
from streamops.versions.compatibility import Moved, Verdict
from streamops.versions.fingerprints import Fingerprint


def of_deployment(
    old: ArtifactManifest,
    old_params: Mapping[str, Param],
    new: ArtifactManifest,
    new_params: Mapping[str, Param],
    changed: Mapping[str, Moved] | None = None,
) -> tuple[Verdict, ...]:
    """What becomes of the state of a deployment of ``old`` when ``new`` continues it.

    Args:
        old_params, new_params: set at deploy, over those of the definitions.
        changed: sources that read elsewhere, as ``moved`` says.
    """
    return of_stages(known(old, old_params), old.definition, known(new, new_params), new.definition, changed)


def of_stages(
    before: Mapping[str, Fingerprint | None],
    old: Definition,
    after: Mapping[str, Fingerprint | None],
    new: Definition,
    changed: Mapping[str, Moved] | None = None,
) -> tuple[Verdict, ...]:
    """The same for versions that need not be published, of which there are fingerprints of the stages."""
    return _verdicts(before, after, new, new.renamed(before, old), changed)


def of_snapshot(
    store: ObjectStore,
    manifest: Manifest,
    new: ArtifactManifest,
    params: Mapping[str, Param],
    changed: Mapping[str, Moved] | None = None,
) -> tuple[Verdict, ...]:
    """What becomes of a snapshot's state when ``new`` continues it; ``changed`` as for ``of_deployment``."""
    before = fingerprints.read(manifest.fingerprints, manifest.stages)
    names = renamed(store, manifest, new.definition)
    return _verdicts(before, known(new, params), new.definition, names, changed)


def moved(
    old: Definition,
    old_places: Mapping[str, str],
    new: Definition,
    new_places: Mapping[str, str],
    moves: Mapping[str, Move] | None = None,
) -> dict[str, Moved]:
    """The sources that read elsewhere than before, with what follows.

    Args:
        old_places, new_places: set at deploy, over those of the definitions.
        moves: of topics, those of which it is known where they begin.
    """
    found: dict[str, Moved] = {}
    there, now = jobs.places(old, old_places), jobs.places(new, new_places)
    for name in there.keys() & now.keys():
        before, after = old.sources[name], new.sources[name]
        if before.kind != after.kind:
            found[name] = compatibility.of_another_kind(name, before.kind, after.kind)
        elif there[name] != now[name] and not after.stage:
            begin = moves[name].begin if moves and name in moves else None
            found[name] = compatibility.elsewhere(name, after.kind, there[name], now[name], begin)
    return found


def renamed(store: ObjectStore, manifest: Manifest, definition: Definition) -> dict[str, str]:
    """The stages that continue one of a snapshot under another name, with that name."""
    try:
        before = artifacts.load_manifest(store, manifest.job, manifest.version).definition
    except NotFoundError:  # deleted since: what it had renamed is not known any more
        before = None
    return definition.renamed(manifest.stages, before)


def _verdicts(
    before: Mapping[str, Fingerprint | None],
    after: Mapping[str, Fingerprint | None],
    new: Definition,
    names: Mapping[str, str],
    changed: Mapping[str, Moved] | None,
) -> tuple[Verdict, ...]:
    again, whose = ledger(new), f"{new.job} {new.version}"
    fill = {name: stage.fill for name, stage in new.stages.items() if stage.fill}
    return compatibility.verdicts(before, after, version=whose, ledger=again, renamed=names, moved=changed, fill=fill)


def ledger(definition: Definition) -> dict[str, str]:
    """Sources whose events are dated by ``max_ahead`` after their records at most, with the column of their time."""
    return {
        name: source.event_time
        for name, source in definition.sources.items()
        if (source.kafka or source.stage) and source.event_time
    }


def known(manifest: ArtifactManifest, params: Mapping[str, Param]) -> dict[str, Fingerprint | None]:
    """Fingerprints of a version's stages as it would be deployed; None where they do not tell."""
    found = fingerprints.read(manifest.fingerprints, manifest.definition.stages)
    changed = altered(manifest.definition, params)
    return {stage: None if item and changed & set(item.params) else item for stage, item in found.items()}


def altered(definition: Definition, params: Mapping[str, Param]) -> set[str]:
    """Names of the params that have another value than in the definition, from which the fingerprints were taken."""
    return {name for name, value in params.items() if definition.params.get(name) != value}


def stored(manifest: ArtifactManifest, params: Mapping[str, Param]) -> dict[str, Any]:
    """The fingerprints of a deployment as a snapshot keeps them."""
    found = known(manifest, params)
    return {stage: item.model_dump(mode="json", exclude_defaults=True) for stage, item in found.items() if item}


def require(
    found: Iterable[Verdict], accepted: Iterable[str], say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Say the verdicts, and refuse what must not happen without a yes.

    Returns:
        The verdicts as facts of the step.

    Raises:
        RefusedError: a stage is incompatible, or state would be lost that no one agreed to lose.
    """
    verdicts = tuple(found)
    for line in compatibility.lines(verdicts):
        say(f"Verdict on {line}")
    against = compatibility.refused(verdicts, accepted)
    never = [item for item in against if item.outcome == "incompatible"]
    if never:
        first = never[0]
        more = f" So is {', '.join(item.stage for item in never[1:])}." if len(never) > 1 else ""
        raise RefusedError(f"Stage {first.stage} is incompatible: {' '.join(first.reasons)} {first.consequence}{more}")
    if against:
        told = " ".join(f"Stage {item.stage}: {item.outcome}. {' '.join(item.reasons)}" for item in against)
        names = ", ".join(item.stage for item in against)
        raise RefusedError(f"{told} State would be lost; to accept that, name the stages in accept_loss: {names}.")
    return {
        "empty": [item.stage for item in verdicts if item.outcome == "starts empty" and item.lost],
        "refilled": [item.stage for item in verdicts if item.outcome == "refilled"],
        "outcomes": {item.stage: item.outcome for item in verdicts},
        "verdicts": {item.stage: item.text() for item in verdicts},
    }
