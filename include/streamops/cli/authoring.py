"""``new``, ``test`` and ``publish``: from an empty directory to an immutable version."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from streamops.cli import console
from streamops.model import definitions
from streamops.model.errors import DefinitionError, NotFoundError
from streamops.model.records import JobRecord
from streamops.spark import local_spark
from streamops.store import jobs
from streamops.versions import artifacts, libraries, template
from streamops.versions.artifacts import ArtifactManifest

SHOWN = {"version", "published", "publisher", "artifact_sha256", "runtime_sha256", "size"}  # of a version, as JSON

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The job's directory.")]
Version = Annotated[
    str | None, typer.Argument(metavar="VERSION", help="Which VERSION.yaml of the directory, if it has several.")
]


def new(
    directory: Directory,
    job: Annotated[str | None, typer.Option(help="The job's name; default: the directory's.")] = None,
) -> None:
    """Create a small job to start from: code, definition and sample rows."""
    name, files = template.write_new(directory, job)
    for path in files:
        console.say(f"wrote {path}")
    console.say(f"\nJob {name}. Next:\n  streamops test {directory}\n  streamops publish {directory}")


def try_out(directory: Directory, version: Version = None) -> None:
    """Run a job on local Spark with sample rows.

    Rows are in samples/SOURCE.jsonl, one JSON object per line; what each stage makes of them is shown.
    """
    if not directory.is_dir():
        raise NotFoundError(f"{directory} is not a directory; 'streamops new {directory}' makes one with a job in it.")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise NotFoundError("There is no Java on this machine; install Java 17, then run 'streamops doctor'.")
    definition = definitions.load(artifacts.definition_file(directory, version))
    library = libraries.beside(directory, definition.library) if definition.library else None
    command = local_spark.command("rehearse", str(directory), *((version,) if version else ()))
    console.say("Starting local Spark ...")
    with tempfile.TemporaryDirectory() as home:  # a job finds no more of this environment than on the cluster
        environment = local_spark.environment(library, bare=Path(home))
        ended = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        lines = ended.stderr.splitlines()
        told = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
        raise DefinitionError(told or f"The job in {directory} could not be tested: {(lines or ['no message'])[-1]}")
    console.say(f"\nNext: streamops publish {directory}")


def publish(
    directory: Directory,
    version: Version = None,
    library: Annotated[
        str | None, typer.Option(metavar="LIBRARY/VERSION", help="Check it with this version of its shared library.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Upload a version as an immutable artifact.

    The same version with other content is refused.
    """
    if not directory.is_dir():
        raise NotFoundError(f"{directory} is not a directory; give the directory that holds VERSION.yaml.")
    store = console.store()
    done = artifacts.publish(store, directory, version, library=library)
    if json:
        console.show_json(done.model_dump(mode="json", include={"job", "definition", *SHOWN}))
        return
    console.say(
        f"Published {done.job} {done.version} ({done.size:,} bytes, sha256 {done.artifact_sha256[:12]}). "
        f"Next: {following(jobs.record(store, done.job), done)}"
    )


def versions(job: Annotated[str, typer.Argument(metavar="JOB", help="The job.")], json: console.Json = False) -> None:
    """List the published versions of a job: who published each, from where and when."""
    store = console.store()
    found = artifacts.manifests(store, job)
    if not found:
        raise NotFoundError(f"Job {job} is not published; run 'streamops publish DIR' first.")
    if json:
        console.show_json([item.model_dump(mode="json", include=SHOWN) for item in found])
        return
    record = jobs.record(store, job)
    columns: dict[str, console.Cell[ArtifactManifest]] = {
        "VERSION": lambda item: item.version,
        "PUBLISHED": lambda item: console.when(item.published),
        "BY": lambda item: item.publisher.user or "-",
        "FROM": lambda item: item.publisher.place or "-",
        "SIZE (bytes)": lambda item: f"{item.size:,}",
        "SHA256": lambda item: item.artifact_sha256[:12],
        "NOW": lambda item: record.desired if record and record.version == item.version else "-",
    }
    console.show_rows(found, columns, json, right=("SIZE (bytes)",))


def following(record: JobRecord | None, done: ArtifactManifest) -> str:
    """The command that puts a published version to work."""
    if record is not None and record.desired == "running" and record.version != done.version:
        return f"streamops upgrade {done.job} {done.version} --snapshot NAME"
    return f"streamops deploy {done.job} {done.version}"
