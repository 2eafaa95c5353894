"""Shared libraries: publish, choose, find beside a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.fixtures import bucket, object_store_server  # noqa: F401
from streamops.model.definitions import Definition, parse
from streamops.model.errors import DefinitionError, NotFoundError, PublishedError, RefusedError
from streamops.settings import REPOSITORY, Settings
from streamops.store.object_store import ObjectStore
from streamops.versions import libraries

FLEET = REPOSITORY / "spark_jobs" / "fleet_types"


@pytest.fixture
def store(bucket: Settings) -> ObjectStore:  # noqa: F811
    return ObjectStore(bucket)


def write(directory: Path, version: str = "v1", body: str = "A = 1\n", name: str = "shared") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "library.yaml").write_text(f"library: {name}\nversion: {version}\n")
    (directory / f"{name}.py").write_text(body)
    return directory


def definition(library: str | None) -> Definition:
    line = f"library: {library}\n" if library else ""
    return parse(
        f"job: j\nversion: v1\ncode: j.py\n{line}sources: {{s: {{kafka: {{topic: t}}, schema: a string}}}}\n"
        "stages: {x: {sinks: [{influxdb: {measurement: m}}]}}\n"
    )


def test_the_same_content_is_published_once_and_other_content_is_refused(store, tmp_path):
    first = libraries.publish(store, write(tmp_path / "a"))
    assert libraries.publish(store, write(tmp_path / "b")) == first
    with pytest.raises(PublishedError, match="choose a new version name"):
        libraries.publish(store, write(tmp_path / "a", body="A = 2\n"))
    libraries.publish(store, write(tmp_path / "a", "v2", "A = 2\n"))
    assert [item.version for item in libraries.versions(store, "shared")] == ["v1", "v2"]
    assert libraries.names(store) == ["shared"]
    with libraries.unpacked(store, first.use) as place:
        assert (place / "shared.py").read_text() == "A = 1\n"


def test_what_is_no_library_is_refused_with_what_is_missing(tmp_path):
    with pytest.raises(DefinitionError, match=r"has no library\.yaml"):
        libraries.collect(tmp_path)
    (write(tmp_path / "a") / "shared.py").unlink()
    with pytest.raises(DefinitionError, match=r"neither shared\.py nor shared/__init__\.py"):
        libraries.collect(tmp_path / "a")
    with pytest.raises(DefinitionError, match="is not Python"):
        libraries.collect(write(tmp_path / "b", body="def\n"))
    (tmp_path / "b" / "library.yaml").write_text("library: ../x\nversion: v1\nmore: 1\n")
    with pytest.raises(DefinitionError, match=r"library.*more"):
        libraries.collect(tmp_path / "b")


def test_a_deployment_gets_what_is_asked_for_else_what_it_had_else_the_newest(store, tmp_path):
    with pytest.raises(NotFoundError, match="is not published"):
        libraries.choose(store, definition("shared"))
    v1 = libraries.publish(store, write(tmp_path, "v1")).use
    v2 = libraries.publish(store, write(tmp_path, "v2")).use
    assert libraries.choose(store, definition("shared")) == v2
    assert libraries.choose(store, definition("shared"), before=v1) == v1
    assert libraries.choose(store, definition("shared"), "shared/v2", v1) == v2
    assert libraries.choose(store, definition(None)) is None
    with pytest.raises(NotFoundError, match=r"no version v3 \(published: v1, v2\)"):
        libraries.choose(store, definition("shared"), "shared/v3")
    with pytest.raises(RefusedError, match="uses library shared, not other"):
        libraries.choose(store, definition("shared"), "other/v1")
    with pytest.raises(RefusedError, match="uses no shared library"):
        libraries.choose(store, definition(None), "shared/v1")


def test_an_archive_that_was_altered_is_not_used(store, tmp_path):
    used = libraries.publish(store, write(tmp_path)).use
    store.put(libraries.load(store, "shared", "v1").archive, b"else")
    with pytest.raises(PublishedError, match="was altered"), libraries.unpacked(store, used):
        pass


def test_beside_a_job_its_library_is_found_in_the_newest_version():
    job = REPOSITORY / "spark_jobs" / "fleet_ingest"
    assert libraries.beside(job, "fleet_types") == FLEET / "v2"
    with pytest.raises(NotFoundError, match="is not beside"):
        libraries.beside(job, "other")


def test_a_sink_of_every_column_shares_its_measurement_with_no_other_stage():
    text = (
        "job: j\nversion: v1\ncode: j.py\nsources: {s: {kafka: {topic: t}, schema: a string}}\n"
        'stages:\n  x: {sinks: [{influxdb: {measurement: m, tags: [a], fields: ["*"]}}]}\n'
    )
    (sink,) = parse(text).stages["x"].sinks
    assert sink.influxdb is not None
    assert sink.influxdb.columns(("a", "b", "time", "c")) == ("b", "c")
    with pytest.raises(DefinitionError, match="measurement m is written by stage"):
        parse(text + "  y: {sinks: [{influxdb: {measurement: m}}]}\n")
