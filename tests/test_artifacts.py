"""Publishing: the same content is the same artifact, and a version never changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fakes.fixtures import bucket, object_store_server  # noqa: F401
from streamops.cli import authoring
from streamops.model.errors import DefinitionError, NotFoundError, PublishedError
from streamops.settings import Settings
from streamops.store import jobs, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import archives, artifacts
from streamops.versions.template import write_new


@pytest.fixture
def store(bucket: Settings) -> ObjectStore:  # noqa: F811
    return ObjectStore(bucket)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    directory = tmp_path / "clicks"
    write_new(directory)
    return directory


def test_publishing_twice_gives_one_version(store: ObjectStore, job: Path, tmp_path: Path) -> None:
    first = artifacts.publish(store, job, check=False)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(job, elsewhere)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1, 1))
    (elsewhere / "__pycache__").mkdir()
    (elsewhere / "__pycache__" / "clicks.pyc").write_bytes(b"x")
    again = artifacts.publish(store, elsewhere, check=False)
    assert again == first  # published when it was published first
    assert artifacts.versions(store, "clicks") == ["v1"]
    assert jobs.names(store) == ["clicks"]


def test_the_same_version_with_other_content_is_refused_and_the_first_is_unchanged(
    store: ObjectStore, job: Path
) -> None:
    first = artifacts.publish(store, job, check=False)
    body = store.get(artifacts.load_manifest(store, "clicks", "v1").archive).body
    code = job / "clicks.py"
    code.write_text(code.read_text() + "\n# changed\n")
    with pytest.raises(PublishedError, match="never changes"):
        artifacts.publish(store, job, check=False)
    assert store.get(artifacts.load_manifest(store, "clicks", "v1").archive).body == body
    assert artifacts.load_manifest(store, "clicks", "v1").artifact_sha256 == first.artifact_sha256


def test_what_is_stored_has_the_hash_of_the_manifest(store: ObjectStore, job: Path) -> None:
    artifacts.publish(store, job, check=False)
    manifest = artifacts.load_manifest(store, "clicks", "v1")
    artifact = store.get(artifacts.load_manifest(store, "clicks", "v1").archive).body
    runtime = store.get(keys.runtime(manifest.runtime_sha256)).body
    assert archives.sha256(artifact) == manifest.artifact_sha256
    assert archives.sha256(runtime) == manifest.runtime_sha256
    can = {artifacts.REPARTITION, artifacts.LEVELS, artifacts.BROKERS, artifacts.BATCHES_IN_SHADOW}
    assert can == {*manifest.runtime_can}
    assert set(archives.unpack(artifact)) == {"definition.json", "code/clicks.py"}
    assert {"streamops_runtime/runner.py", "streamops/store/leases.py", "boto3/__init__.py"} <= set(
        archives.unpack(runtime)
    )


def test_an_unknown_version_names_those_that_exist(store: ObjectStore, job: Path) -> None:
    with pytest.raises(NotFoundError, match="clicks is not published"):
        artifacts.load_manifest(store, "clicks", "v1")
    artifacts.publish(store, job, check=False)
    with pytest.raises(NotFoundError, match="published are v1"):
        artifacts.load_manifest(store, "clicks", "v9")


def test_a_directory_with_several_versions_asks_for_one(job: Path) -> None:
    (job / "v2.yaml").write_text((job / "v1.yaml").read_text().replace("version: v1", "version: v2"))
    with pytest.raises(DefinitionError, match=r"2 definitions \(v1, v2\)"):
        artifacts.collect(job)
    assert artifacts.collect(job, "v2")[0].version == "v2"
    with pytest.raises(DefinitionError, match="does not exist"):
        artifacts.collect(job, "v3")


def test_a_file_named_unlike_its_version_is_refused(job: Path) -> None:
    (job / "v1.yaml").rename(job / "v7.yaml")
    with pytest.raises(DefinitionError, match="says version v1"):
        artifacts.collect(job, "v7")


def test_missing_and_broken_code_is_refused(job: Path) -> None:
    (job / "clicks.py").write_text("def per_minute(:\n")
    with pytest.raises(DefinitionError, match=r"clicks\.py is not Python"):
        artifacts.collect(job)
    (job / "clicks.py").unlink()
    with pytest.raises(DefinitionError, match=r"names code clicks\.py"):
        artifacts.collect(job)


@pytest.mark.full
def test_requirements_travel_in_the_artifact(job: Path, tmp_path: Path) -> None:
    package = tmp_path / "greeting"
    package.mkdir()
    (package / "greeting.py").write_text("WORD = 'hello'\n")
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "greeting"\nversion = "1"\n[tool.setuptools]\npy-modules = ["greeting"]\n'
    )
    (job / "requirements.txt").write_text(f"greeting @ {package.as_uri()}\n")
    files = artifacts.collect(job)[1]
    assert files["deps/greeting.py"] == b"WORD = 'hello'\n"
    assert archives.pack(files) == archives.pack(artifacts.collect(job)[1])
    (job / "requirements.txt").write_text(f"greeting @ {(tmp_path / 'absent').as_uri()}\n")
    with pytest.raises(DefinitionError, match="cannot be resolved"):
        artifacts.collect(job)


@pytest.mark.full
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("def per_minute(clicks", "def per_hour(clicks", "has no function per_minute; it has per_hour"),
        ("def per_minute(clicks:", "def per_minute(visits:", "there is no source visits"),
        ("*, window: str", "*, size: str", "params has no size"),
        ('"page", F.col("count").alias("value")', 'F.col("count").alias("value")', "names column page"),
        ('groupBy(F.window("time", window), "page")', 'groupBy(F.window("time", window), "site")', "site"),
    ],
)
def test_code_that_does_not_fit_is_refused_before_anything_is_uploaded(
    store: ObjectStore, job: Path, old: str, new: str, says: str
) -> None:
    code = job / "clicks.py"
    assert old in code.read_text()
    code.write_text(code.read_text().replace(old, new))
    with pytest.raises(DefinitionError, match=says):
        artifacts.publish(store, job)
    assert artifacts.versions(store, "clicks") == []


@pytest.mark.full
def test_a_jobs_code_is_checked_and_tried_out_without_what_the_caller_knows(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    code = job / "clicks.py"
    writes = f"import os\nfrom pathlib import Path\nPath({str(told)!r}).open('a').write(repr(dict(os.environ)))\n"
    code.write_text(code.read_text().replace("from pyspark", f"{writes}from pyspark", 1))
    monkeypatch.setenv("STREAMOPS_ENV_FILE", "/canary/stack.env")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.chdir(job.parent)
    assert artifacts.plans(Path(job.name), "v1")
    checked = told.read_text()
    authoring.try_out(Path(job.name))
    assert told.read_text() != checked
    assert "canary" not in told.read_text()
    assert f"'HOME': {os.environ['HOME']!r}" not in told.read_text()
