"""Published versions of jobs: immutable, content-addressed, complete.

What runs is the artifact. Editing a working tree or upgrading StreamOps never changes a running job, because
the runner and its dependencies are part of what was published.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict

from streamops.model import definitions, records
from streamops.model.definitions import Definition, Snapshots
from streamops.model.errors import DefinitionError, NotFoundError, PublishedError
from streamops.model.names import SCRATCH, checked
from streamops.model.owner import Publisher
from streamops.model.records import Deployment, JobRecord, LibraryUse
from streamops.model.stored import Stored
from streamops.spark import local_spark
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import archives, libraries
from streamops.versions import fingerprints as fingerprints_of
from streamops.versions.fingerprints import Fingerprint

MAX_ARTIFACT_BYTES = 512 << 20
VALIDATION_S = 240
REPARTITION = "repartition"  # brings kept state into the version's number of partitions
BATCHES_IN_SHADOW = "batches in shadow"  # runs stages in batches beside another version
LEVELS = "levels"  # knows TRACE, and changes levels of loggers while it runs
BROKERS = "brokers"  # reads topics of other brokers than the installation's


class ArtifactManifest(Stored):
    """Written last; a version exists when this exists. ``size`` is the artifact's, in bytes.

    In format 1 the archive's key did not carry its hash.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    format: Literal[1, 2] = 2  # type: ignore[assignment]
    job: str
    version: str
    artifact_sha256: str
    runtime_sha256: str
    size: int
    definition: Definition
    published: datetime
    publisher: Publisher = Publisher()
    runtime_can: tuple[str, ...] = ()  # what a runner published earlier could not do
    fingerprints: dict[str, Any] = {}  # per stage, for the verdict before an upgrade

    @property
    def origin(self) -> str:
        """Who published it, from where and when, as shown to people."""
        return f"published {self.published:%Y-%m-%dT%H:%M:%SZ} by {self.publisher.label()}"

    @property
    def archive(self) -> str:
        """The key of the artifact."""
        return keys.artifact(self.job, self.version, self.artifact_sha256 if self.format > 1 else None)


def publish(
    store: ObjectStore,
    directory: Path,
    version: str | None = None,
    *,
    check: bool = True,
    job: str | None = None,
    library: str | None = None,
) -> ArtifactManifest:
    """Pack a job's directory and upload it as an immutable version.

    Args:
        version: which ``<version>.yaml``; needed only if the directory has several.
        check: build the stages' plans on local Spark first, so that code that cannot run is refused here.
        job: the job that it must be; any job when left out.
        library: LIBRARY/VERSION to check it with; the newest one when left out.

    Raises:
        DefinitionError: the definition or the code is wrong, or it is another job's.
        PublishedError: the version is published already with other content.
        UnreachableError: the object store does not answer.
    """
    definition, files = collect(directory, version)
    if job is not None and definition.job != job:
        raise DefinitionError(f"{directory} holds job {definition.job}, not {job}; correct the file that names it.")
    _refuse_scratch(definition.job)
    fingerprints = _plans(store, directory, definition, library) if check else {}
    artifact = archives.pack(files)
    if len(artifact) > MAX_ARTIFACT_BYTES:
        raise DefinitionError(f"{directory} packs to {len(artifact)} bytes; the most is {MAX_ARTIFACT_BYTES}.")
    sha = archives.sha256(artifact)
    runtime = archives.runtime_archive()
    manifest = ArtifactManifest(
        job=definition.job,
        version=definition.version,
        artifact_sha256=sha,
        runtime_sha256=archives.sha256(runtime),
        size=len(artifact),
        definition=definition,
        published=records.now(),
        publisher=Publisher.here(),
        runtime_can=(REPARTITION, LEVELS, BROKERS, BATCHES_IN_SHADOW),
        fingerprints=fingerprints,
    )
    store.place(keys.runtime(manifest.runtime_sha256), runtime, manifest.runtime_sha256)
    return put(store, manifest, artifact)


def put(store: ObjectStore, manifest: ArtifactManifest, artifact: bytes) -> ArtifactManifest:
    """Make a version exist whose runtime is there already; where it exists, its archive is put right.

    Returns:
        Its manifest: this one, or that of whoever published the same content before.

    Raises:
        PublishedError: it is published already with other content.
    """
    sha, fingerprints = manifest.artifact_sha256, manifest.fingerprints

    def settled(earlier: ArtifactManifest | None) -> ArtifactManifest:
        if earlier is None:
            store.place(manifest.archive, artifact, sha)
            return manifest
        _require_same(earlier, sha)
        store.place(earlier.archive, artifact, sha)  # whatever became of it since
        if earlier.fingerprints or not fingerprints:
            return earlier
        return earlier.model_copy(update={"fingerprints": fingerprints})  # published before there were any

    key = keys.artifact_manifest(manifest.job, manifest.version)
    return documents.update(store, key, ArtifactManifest, settled).value


def repacked(artifact: bytes, manifest: ArtifactManifest, definition: Definition) -> tuple[ArtifactManifest, bytes]:
    """The same code with another definition, that of another job: its manifest and its archive, not published yet."""
    packed = archives.pack({**archives.unpack(artifact), "definition.json": definition.canonical().encode()})
    update = {
        "job": definition.job,
        "definition": definition,
        "artifact_sha256": archives.sha256(packed),
        "size": len(packed),
        "published": records.now(),
    }
    return manifest.model_copy(update=update), packed


def under_name(
    store: ObjectStore, job: str, version: str, name: str, prefix: str = ""
) -> tuple[ArtifactManifest, bytes]:
    """A published version as a version of another job, ``put`` publishes it.

    Args:
        prefix: what the names of its measurements begin with.

    Raises:
        NotFoundError: there is no such version.
        DefinitionError: the name, or one of a measurement, cannot be given.
        PublishedError: the other job has a version of that name with other content.
    """
    _refuse_scratch(name)
    manifest = load_manifest(store, job, version)
    body = store.get(manifest.archive).body
    made, packed = repacked(body, manifest, manifest.definition.under_name(name, prefix))
    if earlier := _find(store, name, version):
        _require_same(earlier, made.artifact_sha256)
        made = earlier
    return made, packed


def _refuse_scratch(job: str) -> None:
    if job.startswith(SCRATCH):
        raise DefinitionError(f"Names that begin with {SCRATCH} belong to restore tests; give {job} another.")


def collect(directory: Path, version: str | None = None) -> tuple[Definition, dict[str, bytes]]:
    """The definition and all files of an artifact, by name inside it.

    Raises:
        DefinitionError: there is no such definition, several to choose from, or the code is not there.
    """
    path = definition_file(directory, version)
    definition = definitions.load(path)
    _schedule(definition)
    if version is not None and definition.version != version:
        raise DefinitionError(f"{path} says version {definition.version}; a version's file carries its name.")
    if not (directory / definition.code).is_file():
        raise DefinitionError(f"{path.name} names code {definition.code}, which is not in {directory}; write it there.")
    files = {f"code/{name}": body for name, body in archives.tree(directory, suffix=".py").items() if _is_code(name)}
    for name, body in files.items():
        try:
            compile(body, name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise DefinitionError(f"{name.removeprefix('code/')} is not Python ({error}); correct it.") from None
    files["definition.json"] = definition.canonical().encode()
    requirements = directory / "requirements.txt"
    if requirements.is_file():
        files |= _dependencies(requirements)
    return definition, files


def _schedule(definition: Definition) -> None:
    from streamops.model.schedules import (
        require_valid,  # needs a package that drivers, who read artifacts too, do not have
    )

    require_valid(definition.snapshots)


def definition_file(directory: Path, version: str | None = None) -> Path:
    """The version's YAML file. Raises DefinitionError."""
    if version is not None:
        path = directory / f"{checked('version', version)}.yaml"
        if not path.is_file():
            raise DefinitionError(f"{path} does not exist; a version is declared in a file of its name.")
        return path
    found = sorted(directory.glob("*.yaml"))
    if len(found) != 1:
        names = ", ".join(path.stem for path in found) or "none"
        raise DefinitionError(f"{directory} has {len(found)} definitions ({names}); name the version to publish.")
    return found[0]


def current(store: ObjectStore, record: JobRecord | None) -> Definition | None:
    """What a job has now, with its deployment's resources; None when it has none, or it is not published any more."""
    if record is None or record.version is None:
        return None
    found = _find(store, record.job, record.version)
    deployment = documents.find(store, keys.deployment(record.job, record.deployment), Deployment)
    return found.definition.with_resources(deployment.resources if deployment else {}) if found else None


def topics_read(store: ObjectStore, job: str) -> set[str]:
    """Every topic that a published version of a job reads, or that a deployment was told to read instead."""
    sources = [item.definition.sources for item in manifests(store, job)]
    defined = {(name, source.address) for found in sources for name, source in found.items() if source.kafka}
    deployed = documents.every(store, keys.deployments(job), Deployment)
    given = {pair for found in deployed for pair in found.topics.items()}
    names = {name for name, _ in defined}
    return {topic for _, topic in defined} | {place for name, place in given if name in names}


def snapshot_plan(store: ObjectStore, record: JobRecord | None) -> Snapshots | None:
    """When snapshots of a job are taken and which are kept: as was set for it, else as its definition says."""
    if record is not None and record.snapshots:
        return record.snapshots.plan
    definition = current(store, record)
    return definition.snapshots if definition else None


def load_manifest(store: ObjectStore, job: str, version: str) -> ArtifactManifest:
    """The manifest of a published version.

    Raises:
        NotFoundError: names the versions that are published.
    """
    if found := _find(store, job, version):
        return found
    known = versions(store, job)
    if known:
        raise NotFoundError(f"{job} has no version {version}; published are {', '.join(known)}.")
    raise NotFoundError(f"Job {job} is not published; run 'streamops publish DIR' first.")


def versions(store: ObjectStore, job: str) -> list[str]:
    """Published versions of a job, oldest first."""
    return [manifest.version for manifest in manifests(store, job)]


def manifests(store: ObjectStore, job: str) -> list[ArtifactManifest]:
    """The manifests of all published versions of a job, oldest first."""
    names = keys.names_in(store.prefixes(keys.versions(job)))
    found = [manifest for name in names if (manifest := _find(store, job, name))]
    return sorted(found, key=lambda item: item.published)


def _find(store: ObjectStore, job: str, version: str) -> ArtifactManifest | None:
    return documents.find(store, keys.artifact_manifest(job, version), ArtifactManifest)


def _require_same(earlier: ArtifactManifest, sha: str) -> None:
    if earlier.artifact_sha256 != sha:
        raise PublishedError(
            f"{earlier.job} {earlier.version} is published with other content ({earlier.artifact_sha256[:12]}, this is "
            f"{sha[:12]}); a version never changes, so choose a new version name."
        )


def _is_code(name: str) -> bool:
    return not re.match(r"(tests?/|conftest\.py$|test_)", name)


def _dependencies(requirements: Path) -> dict[str, bytes]:
    """What the job's own requirements.txt resolves to, installed aside."""
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        command += ["--target", temporary, "-r", requirements.name]
        done = subprocess.run(command, cwd=requirements.parent, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise DefinitionError(f"{requirements} cannot be resolved: {last}")
        found = archives.tree(Path(temporary), "deps/")
    changing = (".pyc", "RECORD", "INSTALLER", "direct_url.json")  # differ although the packages are the same
    return {name: body for name, body in found.items() if not name.endswith(changing)}


def _plans(store: ObjectStore, directory: Path, definition: Definition, library: str | None) -> dict[str, Any]:
    """The fingerprints with a published version of the job's library."""
    used = libraries.choose(store, definition, library)
    with libraries.unpacked(store, used) if used else nullcontext() as place:
        return plans(directory, definition.version, place)


def plans_with(store: ObjectStore, manifest: ArtifactManifest, library: LibraryUse) -> dict[str, Fingerprint | None]:
    """The fingerprints of a published version with another version of its library. Raises DefinitionError."""
    with tempfile.TemporaryDirectory() as temporary, libraries.unpacked(store, library) as place:
        unpack(store, manifest, Path(temporary))
        found = plans(Path(temporary), manifest.version, place)
    return fingerprints_of.read(found, manifest.definition.stages)


def unpack(store: ObjectStore, manifest: ArtifactManifest, directory: Path) -> None:
    """Write a version's code, what it depends on and its definition, so that they can be imported there.

    Raises:
        PublishedError: the archive is not what was published.
    """
    body = store.get(manifest.archive).body
    if archives.sha256(body) != manifest.artifact_sha256:
        raise PublishedError(
            f"The archive of {manifest.job} {manifest.version} was altered; publish it under a new version."
        )
    archives.extract(body, directory, _importable)
    definition = directory / f"{manifest.version}.yaml"
    definition.write_text(manifest.definition.canonical(), encoding="utf-8")


def _importable(name: str) -> str | None:
    """Where a file of an artifact lies for those that import it; None for one that nobody imports."""
    kind, _, path = name.partition("/")
    return path if kind in ("code", "deps") else None


def plans(directory: Path, version: str, library: Path | None = None, *, gives_way: bool = False) -> dict[str, Any]:
    """The fingerprints of a version's stages, after its plans were built and found sound.

    A process of its own asks local Spark: the core stays free of it. It runs the job's code, so it finds
    nothing of this process's environment.

    Args:
        library: where the job's shared library lies, if it has one.
        gives_way: whether jobs that run on the same machine come first.

    Raises:
        DefinitionError: the code cannot run; says which stage and why.
    """
    try:
        with tempfile.TemporaryDirectory() as home:
            asked = local_spark.ask(
                *("validate", str(directory.resolve()), version),
                timeout_s=VALIDATION_S, library=library, gives_way=gives_way, bare=Path(home),
            )  # fmt: skip
    except TimeoutError:
        raise DefinitionError(
            f"Checking {directory} took longer than {VALIDATION_S} s; see what its code does on import."
        ) from None
    if not asked.answers:
        raise DefinitionError(f"{directory} could not be checked on local Spark: {asked.error}")
    answer = asked.answers[-1]
    if asked.code:
        raise DefinitionError(str(answer["error"]))
    return dict(answer["fingerprints"])
