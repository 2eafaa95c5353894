"""Publishing at once, after a publish that died, and again: the archive is always the one that the manifest names."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fakes import object_server
from fakes.rig import write_env
from streamops.cli import app
from streamops.model import owner
from streamops.model.errors import PublishedError
from streamops.settings import Settings
from streamops.store.object_store import ObjectStore
from streamops.versions import archives, artifacts, libraries
from streamops.versions.template import write_new

PATIENCE_S = 60


class Stopping(ObjectStore):
    """An object store that calls ``before`` when the manifest is about to be written."""

    before: Callable[[], object] = staticmethod(lambda: None)

    def put(self, key: str, body: bytes, **condition: Any) -> str:
        if key.endswith("/manifest.json"):
            self.before()
        return super().put(key, body, **condition)


class Kind:
    """Artifacts of a job, or versions of a shared library: two directories with the same version and other content."""

    def __init__(self, kind: str, place: Path) -> None:
        self.kind, self.one, self.other = kind, place / "one", place / "other"
        if kind == "artifact":
            write_new(self.one, "clicks")
        else:
            self.one.mkdir()
            (self.one / "library.yaml").write_text("library: shared\nversion: v1\n")
            (self.one / "shared.py").write_text("WORD = 1\n")
        shutil.copytree(self.one, self.other)
        for code in self.other.glob("*.py"):
            code.write_text(code.read_text() + "# other\n")

    def publish(self, store: ObjectStore, directory: Path) -> Any:
        if self.kind == "artifact":
            return artifacts.publish(store, directory, check=False)
        return libraries.publish(store, directory)

    def sha256(self, store: ObjectStore) -> str:
        """Of the archive, as the manifest says."""
        found = self.manifest(store)
        return str(getattr(found, "artifact_sha256", None) or found.sha256)

    def manifest(self, store: ObjectStore) -> Any:
        if self.kind == "artifact":
            return artifacts.load_manifest(store, "clicks", "v1")
        return libraries.load(store, "shared", "v1")

    def archive(self, store: ObjectStore) -> bytes:
        """The bytes that drivers get."""
        return store.get(self.manifest(store).archive).body


@pytest.fixture(params=["artifact", "library"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return Kind(request.param, tmp_path)


def test_of_two_publishes_at_once_one_is_whole_and_the_other_is_refused(bucket: Settings, kind: Kind) -> None:
    first, second = Stopping(bucket), Stopping(bucket)
    second_waits, first_is_done = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        later: list[Any] = []

        def overtaken() -> None:
            if not later:
                later.append(pool.submit(kind.publish, second, kind.other))
                assert second_waits.wait(PATIENCE_S)

        def waits() -> None:
            second_waits.set()
            assert first_is_done.wait(PATIENCE_S)

        first.before, second.before = overtaken, waits
        kind.publish(first, kind.one)
        first_is_done.set()
        with pytest.raises(PublishedError, match="published with other content"):
            later[0].result(PATIENCE_S)
    store = ObjectStore(bucket)
    assert archives.sha256(kind.archive(store)) == kind.sha256(store)
    kind.publish(store, kind.one)  # the same once more changes nothing
    assert archives.sha256(kind.archive(store)) == kind.sha256(store)


def test_who_published_from_where_and_when_stays_with_the_version(
    bucket: Settings, kind: Kind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = ObjectStore(bucket)
    for user, directory in (("ada", kind.one), ("eve", kind.one)):  # once more changes nothing
        monkeypatch.setattr(owner, "current_user", lambda user=user: user)
        kind.publish(store, directory)
    found = kind.manifest(store)
    assert (found.publisher.user, found.publisher.place) == ("ada", socket.gethostname())
    assert found.origin == f"published {found.published:%Y-%m-%dT%H:%M:%SZ} by ada, {socket.gethostname()}"

    write_env(tmp_path / "cli.env", bucket)
    monkeypatch.setenv("STREAMOPS_ENV_FILE", str(tmp_path / "cli.env"))
    words = ("versions", "clicks") if kind.kind == "artifact" else ("libraries",)
    listed = CliRunner().invoke(app, [*words, "--json"])
    assert listed.exit_code == 0, listed.output
    (item,) = json.loads(listed.output)
    assert item["publisher"] == {"user": "ada", "place": socket.gethostname()}
    assert "ada" in CliRunner().invoke(app, list(words)).output


def test_a_publish_that_died_before_its_manifest_leaves_the_version_free(bucket: Settings, kind: Kind) -> None:
    dying = Stopping(bucket)

    def die() -> None:
        raise KeyboardInterrupt

    dying.before = die
    with pytest.raises(KeyboardInterrupt):
        kind.publish(dying, kind.one)
    store = ObjectStore(bucket)
    kind.publish(store, kind.other)
    assert archives.sha256(kind.archive(store)) == kind.sha256(store)


def test_publishing_again_puts_right_what_the_archive_lost(bucket: Settings, kind: Kind) -> None:
    store = ObjectStore(bucket)
    kind.publish(store, kind.one)
    good, root = kind.archive(store), ObjectStore(object_server.as_root(bucket))
    for damage in (lambda key: store.put(key, b"else"), lambda key: root.delete([key])):
        damage(kind.manifest(store).archive)
        kind.publish(store, kind.one)
        assert kind.archive(store) == good
    with pytest.raises(PublishedError):
        kind.publish(store, kind.other)
    assert kind.archive(store) == good
