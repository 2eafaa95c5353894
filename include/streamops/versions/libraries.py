"""Shared libraries: code that several jobs import, published apart from them.

A definition names the job's library. Which version of it a deployment gets is decided when the job is deployed, and
changes with an upgrade or a restart of the cluster; the job's own artifact stays the same, byte for byte.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from streamops.model import definitions, records
from streamops.model.definitions import Definition, LibraryName, VersionName
from streamops.model.errors import ConflictError, DefinitionError, NotFoundError, PublishedError, RefusedError
from streamops.model.names import checked
from streamops.model.names import library as reference
from streamops.model.owner import Publisher
from streamops.model.records import LibraryUse
from streamops.model.stored import Stored
from streamops.model.wording import wrong_fields
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import archives

FILE = "library.yaml"


class LibraryDefinition(BaseModel):
    """What ``library.yaml`` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: LibraryName
    version: VersionName
    description: str = ""


class LibraryManifest(Stored):
    """Written last; a version exists when this exists. ``size`` is the archive's, in bytes.

    In format 1 the archive's key did not carry its hash.
    """

    format: Literal[1, 2] = 2  # type: ignore[assignment]
    library: str
    version: str
    description: str = ""
    sha256: str
    size: int
    published: datetime
    publisher: Publisher = Publisher()

    @property
    def origin(self) -> str:
        """Who published it, from where and when, as shown to people."""
        return f"published {self.published:%Y-%m-%dT%H:%M:%SZ} by {self.publisher.label()}"

    @property
    def use(self) -> LibraryUse:
        """This version, as a deployment records it."""
        return LibraryUse(name=self.library, version=self.version, sha256=self.sha256)

    @property
    def archive(self) -> str:
        """The key of the archive."""
        return keys.library(self.library, self.version, self.sha256 if self.format > 1 else None)


def publish(store: ObjectStore, directory: Path) -> LibraryManifest:
    """Pack a library's directory and upload it as an immutable version; the same content again changes nothing.

    Raises:
        DefinitionError: the definition is wrong, or the directory lacks the module of the library's name.
        PublishedError: the version is published already with other content.
    """
    definition, files = collect(directory)
    body = archives.pack(files)
    manifest = LibraryManifest(
        **definition.model_dump(),
        sha256=archives.sha256(body),
        size=len(body),
        published=records.now(),
        publisher=Publisher.here(),
    )

    def settled(earlier: LibraryManifest | None) -> LibraryManifest:
        found = _same(earlier, manifest) if earlier else manifest
        store.place(found.archive, body, manifest.sha256)  # whatever became of it since
        return found

    key = keys.library_manifest(definition.library, definition.version)
    return documents.update(store, key, LibraryManifest, settled).value


def require_same(store: ObjectStore, use: LibraryUse) -> None:
    """Raise PublishedError if the version is published here with other content."""
    found = documents.find(store, keys.library_manifest(use.name, use.version), LibraryManifest)
    if found and found.sha256 != use.sha256:
        raise PublishedError(
            f"Library {use.label} is published here with other content ({found.sha256[:12]}, asked for is "
            f"{use.sha256[:12]}), so what was made with it cannot be continued here."
        )


def accept(store: ObjectStore, use: LibraryUse) -> None:
    """Publish a version that was built elsewhere; its archive is in place and was compared with its hash.

    Raises:
        PublishedError: the version is published here with other content.
    """
    size = store.head(keys.library(use.name, use.version, use.sha256)).size
    manifest = LibraryManifest(
        library=use.name,
        version=use.version,
        sha256=use.sha256,
        size=size,
        published=records.now(),
        publisher=Publisher(place="an archive of another installation"),
    )
    try:
        documents.write(store, keys.library_manifest(use.name, use.version), manifest, new=True)
    except ConflictError:
        require_same(store, use)


def _same(earlier: LibraryManifest, wanted: LibraryManifest) -> LibraryManifest:
    if earlier.sha256 != wanted.sha256:
        raise PublishedError(
            f"Library {earlier.use.label} is published with other content ({earlier.sha256[:12]}, this is "
            f"{wanted.sha256[:12]}); a version never changes, so choose a new version name."
        )
    return earlier


def collect(directory: Path) -> tuple[LibraryDefinition, dict[str, bytes]]:
    """The definition and all files of a library. Raises DefinitionError."""
    path = directory / FILE
    if not path.is_file():
        raise DefinitionError(f"{directory} has no {FILE}; a library's directory says its name and version there.")
    found = definitions.documents(definitions.text_of(path), path.name)
    try:
        definition = LibraryDefinition.model_validate(found[0] if len(found) == 1 else None)
    except ValidationError as error:
        raise DefinitionError(
            f"{path} needs library and version, and may have a description: {wrong_fields(error)}."
        ) from None
    files = archives.tree(directory, suffix=".py")
    modules = (f"{definition.library}.py", f"{definition.library}/__init__.py")
    if not any(name in files for name in modules):
        raise DefinitionError(f"{directory} has neither {modules[0]} nor {modules[1]}; jobs import the library's name.")
    for name, body in files.items():
        try:
            compile(body, name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise DefinitionError(f"{name} is not Python ({error}); correct it.") from None
    return definition, files


def names(store: ObjectStore) -> list[str]:
    """Names of all published libraries."""
    return [entry.split("/")[1] for entry in store.prefixes(keys.LIBRARIES)]


def versions(store: ObjectStore, library: str) -> list[LibraryManifest]:
    """Published versions of a library, oldest first."""
    names = keys.names_in(store.prefixes(keys.library_versions(library)))
    found = (documents.find(store, keys.library_manifest(library, name), LibraryManifest) for name in names)
    return sorted((item for item in found if item), key=lambda item: item.published)


def load(store: ObjectStore, library: str, version: str) -> LibraryManifest:
    """A published version. Raises NotFoundError, which names those that are published."""
    if found := documents.find(store, keys.library_manifest(library, version), LibraryManifest):
        return found
    known = ", ".join(item.version for item in versions(store, library)) or "none"
    raise NotFoundError(
        f"Library {library} has no version {version} (published: {known}); 'streamops libraries publish DIR' adds one."
    )


def choose(
    store: ObjectStore, definition: Definition, asked: str | None = None, before: LibraryUse | None = None
) -> LibraryUse | None:
    """Which version a deployment gets: the one asked for, else the one it has, else the newest.

    Args:
        asked: LIBRARY/VERSION.
        before: of the deployment whose place it takes.

    Raises:
        RefusedError: another library is asked for than the definition names.
        NotFoundError: there is no such version.
    """
    if definition.library is None:
        if asked:
            raise RefusedError(f"{definition.job} {definition.version} uses no shared library; leave {asked} out.")
        return None
    if asked:
        name, version = reference(asked).split("/")
        if name != definition.library:
            raise RefusedError(f"{definition.job} {definition.version} uses library {definition.library}, not {name}.")
        return load(store, name, version).use
    if before is not None and before.name == definition.library:
        return before
    known = versions(store, definition.library)
    if not known:
        raise NotFoundError(
            f"Library {definition.library}, which {definition.job} {definition.version} uses, is not published; "
            "run 'streamops libraries publish DIR' first."
        )
    return known[-1].use


@contextmanager
def unpacked(store: ObjectStore, use: LibraryUse) -> Iterator[Path]:
    """The library's files in a directory of their own, for as long as someone looks at them.

    Raises:
        PublishedError: the archive is not what was published.
    """
    body = store.get(load(store, use.name, use.version).archive).body
    if archives.sha256(body) != use.sha256:
        raise PublishedError(f"The archive of library {use.label} was altered; publish it under a new version.")
    with tempfile.TemporaryDirectory() as temporary:
        archives.extract(body, Path(temporary))
        yield Path(temporary)


def beside(directory: Path, library: str) -> Path:
    """The library's sources in a directory beside the job's, for tries that need no server.

    Raises:
        NotFoundError: there is none.
    """
    checked("library", library)
    places = [*directory.resolve().parent.glob(f"*/{FILE}"), *directory.resolve().parent.glob(f"*/*/{FILE}")]
    found = [path.parent for path in sorted(places) if collect(path.parent)[0].library == library]
    if not found:
        raise NotFoundError(
            f"Library {library} is not beside {directory}; put its directory, with {FILE}, into {directory.parent}."
        )
    return found[-1]
