"""A snapshot as one file, brought into an installation that never saw it."""

from __future__ import annotations

import io
import json
import secrets
import tarfile
from pathlib import Path
from typing import IO, Any

import pytest
from pydantic import SecretStr

from fakes import object_server
from fakes import shelf as shelves
from fakes.rig import definition
from fakes.shelf import JOB, Shelf
from streamops import snapshots
from streamops.model import records
from streamops.model.errors import (
    NotFoundError,
    PublishedError,
    SnapshotExistsError,
    SnapshotRefusedError,
    StreamOpsError,
)
from streamops.model.manifest import Manifest
from streamops.operations import receipts
from streamops.operations.engine import AtPoint, Engine
from streamops.operations.follow import request as ask
from streamops.settings import Settings
from streamops.snapshots import portable, verification
from streamops.snapshots.portable import Imported
from streamops.store import documents, keys, object_store
from streamops.store.object_store import ObjectStore
from streamops.versions import archives, artifacts, libraries
from streamops.versions.artifacts import ArtifactManifest

CODE, RUNTIME = b"the artifact " * 1000, b"the runtime " * 1000


class Elsewhere:
    """Another installation: its own bucket and its own key."""

    def __init__(self, settings: Settings, keys_text: str = "") -> None:
        fresh = object_server.fresh_bucket(settings)
        text = keys_text or f"other:{secrets.token_hex(32)}"
        self.settings = fresh.model_copy(update={"snapshot_keys": SecretStr(text)})
        self.store = ObjectStore(self.settings)


@pytest.fixture
def shelf(bucket: Settings) -> Shelf:
    found = Shelf(bucket)
    found.publish(CODE, RUNTIME)
    found.batches(6)
    return found


@pytest.fixture
def packed(shelf: Shelf, tmp_path: Path) -> tuple[Manifest, Path]:
    shelf.take("earlier")
    shelf.batches(1)
    manifest = shelf.take("s")
    assert len(manifest.copied()) < len(manifest.objects)
    seen: list[tuple[int, int]] = []
    portable.export(shelf.store, JOB, "s", tmp_path / "s.tar", lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == manifest.size + len(CODE) + len(RUNTIME)
    return manifest, tmp_path / "s.tar"


class Overtaken(ObjectStore):
    """Someone else publishes other content of the version while its artifact is brought."""

    def put_file(self, key: str, body: IO[bytes], sha256: str) -> str | None:
        if key.endswith(f"{archives.sha256(CODE)}.zip"):
            other = ArtifactManifest(
                job=JOB, version="v1", artifact_sha256="o" * 64, runtime_sha256="r" * 64, size=1,
                definition=definition("v1", ("a", "b")), published=records.now(),
            )  # fmt: skip
            documents.write(self, keys.artifact_manifest(JOB, "v1"), other, new=True)
        return super().put_file(key, body, sha256)


def edited(path: Path, change: object) -> Path:
    """The archive with other members: ``change`` gets the list of name and bytes and returns it."""
    with tarfile.open(path) as archive:
        members = [(member.name, archive.extractfile(member).read()) for member in archive]
    target = path.with_name("edited.tar")
    with tarfile.open(target, "w") as archive:
        for name, body in change(members):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return target


def load(store: ObjectStore, path: Path, **more: Any) -> Imported:
    with path.open("rb") as source:
        return portable.load(store, source, path.name, **more)


def nothing_there(store: ObjectStore) -> bool:
    return not snapshots.entries(store, JOB)


def test_who_publishes_other_content_meanwhile_is_noticed(shelf: Shelf, packed: tuple[Manifest, Path]) -> None:
    other = Overtaken(Elsewhere(shelf.settings).settings)
    with pytest.raises(PublishedError, match="published here with other content"):
        load(other, packed[1], trust=True)
    assert nothing_there(other)


def test_it_arrives_whole_and_signed_by_its_new_home(shelf: Shelf, packed: tuple[Manifest, Path]) -> None:
    manifest, path = packed
    other = Elsewhere(shelf.settings)
    with pytest.raises(SnapshotRefusedError, match=r"not accepted here.*--trust"):
        load(other.store, path)
    assert not list(other.store.list(""))  # refused before anything was written
    done = load(other.store, path, trust=True)
    assert (done.objects, done.skipped, done.published) == (len(manifest.objects), 0, True)
    arrived = snapshots.load(other.store, JOB, "s")
    assert arrived.signature.startswith("hmac-sha256:other:")
    assert [(i.stage, i.path, i.sha256, i.size) for i in arrived.objects] == [
        (i.stage, i.path, i.sha256, i.size) for i in manifest.objects
    ]
    assert (arrived.stages, arrived.created, arrived.requested_by) == (manifest.stages, manifest.created, "ada")
    assert not verification.read_back(other.store, arrived)
    target = keys.epoch(JOB, 1, 1)
    assert snapshots.restore(other.store, arrived, target) == {"a": 6, "b": 6}
    assert artifacts.load_manifest(other.store, JOB, "v1").definition.job == JOB
    assert other.store.get(artifacts.load_manifest(other.store, JOB, "v1").archive).body == CODE
    assert other.store.get(keys.runtime(archives.sha256(RUNTIME))).body == RUNTIME
    assert load(other.store, path, trust=True).skipped == len(manifest.objects)  # once more: nothing to do


def test_an_installation_that_accepts_the_key_needs_no_word_of_trust(
    shelf: Shelf, packed: tuple[Manifest, Path]
) -> None:
    own = shelf.settings.snapshot_keys.get_secret_value()
    other = Elsewhere(shelf.settings, f"new:{secrets.token_hex(32)},{own}")
    load(other.store, packed[1])
    assert snapshots.load(other.store, JOB, "s").signature.startswith("hmac-sha256:new:")


def test_an_import_that_died_goes_on(shelf: Shelf, packed: tuple[Manifest, Path]) -> None:
    manifest, path = packed
    other = Elsewhere(shelf.settings)

    class Died(Exception):
        pass

    count = 0

    def die(done: int, total: int) -> None:
        nonlocal count
        count += 1
        if count == 7:
            raise Died

    with pytest.raises(Died):
        load(other.store, path, trust=True, progress=die)
    assert nothing_there(other.store)
    done = load(other.store, path, trust=True)
    assert (done.skipped, done.objects) == (7, len(manifest.objects) - 7)
    assert not verification.read_back(other.store, snapshots.load(other.store, JOB, "s"))


def test_a_run_imports_what_was_uploaded_and_leaves_nothing_of_it_wherever_it_is_killed(
    shelf: Shelf, packed: tuple[Manifest, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "AHEAD", 10_000)  # much less than the archive
    manifest, path = packed
    other = Elsewhere(shelf.settings)
    retention = ObjectStore(other.settings.for_retention())
    staged = portable.stage(other.store, path)
    assert portable.stage(other.store, path) == staged == (JOB, "s", archives.sha256(path.read_bytes()))
    archive = keys.snapshot_upload(JOB, staged.sha256)
    assert len(list(other.store.versions(archive))) == 1  # it was sent once

    def engine(at_point: AtPoint = lambda step, when: None) -> Engine:
        return shelves.engine(other.store, retention, at_point)

    asked = ask("manage_snapshot", job=JOB, action="import", snapshot="s", archive=staged.sha256)
    for name, wrong, says in (
        ("untrusted", {}, "not accepted here"),
        ("misnamed", {"snapshot": "t", "trust": True}, "holds sums/s, not sums/t"),
        ("absent", {"archive": "0" * 64}, "'streamops snapshots import FILE' uploads it"),
    ):
        with pytest.raises(StreamOpsError, match=says):
            engine().run(asked.model_copy(update=wrong), shelves.ADA, name)
    assert nothing_there(other.store)
    snapshots.remove_leftovers(other.store, JOB, deleting=lambda: retention)
    assert other.store.exists(archive)  # the next try need not send it again

    done = shelves.killed_everywhere(engine, asked.model_copy(update={"trust": True}))
    assert done.facts("change")["objects"] == len(manifest.objects)
    arrived = snapshots.load(other.store, JOB, "s")
    assert not verification.read_back(other.store, arrived)
    assert not list(other.store.versions(archive))
    receipt = receipts.read(other.store, JOB, "op")
    assert receipt is not None
    assert (receipt.snapshot, receipt.requested_by) == (f"{JOB}/s", "ada")


def test_an_export_that_died_leaves_no_file(shelf: Shelf, tmp_path: Path) -> None:
    manifest = shelf.take("s")
    shelf.destroy(manifest.objects[-1].key)
    shelf.overwrite(manifest.objects[-1].key, b"?")
    with pytest.raises(SnapshotRefusedError, match=manifest.objects[-1].key):
        portable.export(shelf.store, JOB, "s", tmp_path / "s.tar")
    assert not (tmp_path / "s.tar").exists()
    with pytest.raises(NotFoundError):
        portable.export(shelf.store, JOB, "no", tmp_path / "s.tar")


def test_an_archive_with_anything_wrong_is_refused(shelf: Shelf, packed: tuple[Manifest, Path], seed: int) -> None:
    manifest, path = packed
    other = Elsewhere(shelf.settings, shelf.settings.snapshot_keys.get_secret_value())

    def flipped(at: int):
        def change(members):
            name, body = members[at]
            return [*members[:at], (name, bytes([body[0] ^ 1]) + body[1:]), *members[at + 1 :]]

        return change

    changes = {
        "manifest altered": lambda members: [(members[0][0], members[0][1].replace(b'"ada"', b'"eve"')), *members[1:]],
        "version altered": lambda members: [
            members[0],
            (members[1][0], members[1][1].replace(b'"cores": 2', b'"cores": 64')),
            *members[2:],
        ],
        "manifest later": lambda members: [members[1], members[0], *members[2:]],
        "artifact altered": flipped(2),
        "runtime altered": flipped(3),
        "first object altered": flipped(4),
        "last object altered": flipped(-1 + len(manifest.objects) + 4),
        "two swapped": lambda members: [
            *members[:-2],
            (members[-2][0], members[-1][1]),
            (members[-1][0], members[-2][1]),
        ],
        "one missing": lambda members: members[:-1],
        "one more": lambda members: [*members, ("objects/a/../../../x", b"x")],
        "one twice": lambda members: [*members, members[-1]],
        "no version": lambda members: [members[0], *members[2:]],
    }
    for name, change in changes.items():
        with pytest.raises(SnapshotRefusedError):
            load(other.store, edited(path, change), trust=True)
        assert nothing_there(other.store), name
    whole = path.read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 11 * 1024):
        path.with_name("cut.tar").write_bytes(whole[:length])
        with pytest.raises(SnapshotRefusedError, match=r"cut\.tar"):
            load(other.store, path.with_name("cut.tar"))
        assert nothing_there(other.store), length
    with pytest.raises(NotFoundError):
        portable.stage(other.store, path.with_name("none.tar"))
    load(other.store, path)  # the good one arrives all the same
    assert not verification.read_back(other.store, snapshots.load(other.store, JOB, "s"))


def test_a_description_of_the_version_without_signature_needs_a_word_of_trust(
    shelf: Shelf, packed: tuple[Manifest, Path]
) -> None:
    def unsigned(members: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        fields = json.loads(members[1][1])
        del fields["signature"]
        return [members[0], (members[1][0], json.dumps(fields).encode()), *members[2:]]

    other = Elsewhere(shelf.settings, shelf.settings.snapshot_keys.get_secret_value())
    path = edited(packed[1], unsigned)
    with pytest.raises(SnapshotRefusedError, match=r"is not signed.*--trust"):
        load(other.store, path)
    assert nothing_there(other.store)
    load(other.store, path, trust=True)
    assert "signature" not in json.loads(other.store.get(keys.artifact_manifest(JOB, "v1")).body)


def test_what_is_there_already_is_never_overwritten(shelf: Shelf, packed: tuple[Manifest, Path]) -> None:
    with pytest.raises(SnapshotExistsError):
        load(shelf.store, packed[1])  # at home the name is taken by the original
    other = Elsewhere(shelf.settings)
    version = artifacts.load_manifest(shelf.store, JOB, "v1").model_copy(update={"artifact_sha256": "0" * 64})
    documents.write(other.store, keys.artifact_manifest(JOB, "v1"), version)
    with pytest.raises(PublishedError, match="other content"):
        load(other.store, packed[1], trust=True)
    assert nothing_there(other.store)


def test_the_shared_library_comes_along_and_another_of_its_name_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    source = tmp_path / "shared"
    source.mkdir()
    (source / "library.yaml").write_text("library: shared\nversion: v1\n")
    (source / "shared.py").write_text("A = 1\n")
    use = libraries.publish(shelf.store, source).use
    deployment = documents.read(shelf.store, keys.deployment(JOB, 1), records.Deployment).value
    documents.write(shelf.store, keys.deployment(JOB, 1), deployment.model_copy(update={"library": use}))
    assert shelf.take("s").shared_library == use
    path = tmp_path / "s.tar"
    portable.export(shelf.store, JOB, "s", path)

    other = Elsewhere(shelf.settings)
    load(other.store, path, trust=True)
    assert libraries.load(other.store, "shared", "v1").use == use
    with libraries.unpacked(other.store, use) as place:
        assert (place / "shared.py").read_text() == "A = 1\n"
    assert snapshots.load(other.store, JOB, "s").shared_library == use

    third = Elsewhere(shelf.settings)
    (source / "shared.py").write_text("A = 2\n")
    libraries.publish(third.store, source)
    with pytest.raises(PublishedError, match=r"Library shared/v1 is published here with other content"):
        load(third.store, path, trust=True)
    assert nothing_there(third.store)
