"""What a person is told after publishing."""

from __future__ import annotations

import pytest

from fakes.rig import definition
from streamops.cli.authoring import following
from streamops.model.records import JobRecord, now
from streamops.versions.artifacts import ArtifactManifest


@pytest.mark.parametrize(
    ("record", "next_step"),
    [
        (None, "streamops deploy sums v2"),
        (JobRecord(job="sums", desired="running", version="v1", deployment=1), "streamops upgrade sums v2"),
        (JobRecord(job="sums", desired="running", version="v2", deployment=1), "streamops deploy sums v2"),
        (JobRecord(job="sums", desired="stopped", version="v1", deployment=1), "streamops deploy sums v2"),
    ],
    ids=["never deployed", "another version runs", "this version runs", "stopped"],
)
def test_the_next_step_after_publishing_is_one_that_is_not_refused_at_once(
    record: JobRecord | None, next_step: str
) -> None:
    done = ArtifactManifest(
        job="sums", version="v2", artifact_sha256="a", runtime_sha256="r", size=1, definition=definition("v2", ("a",)),
        published=now(),
    )  # fmt: skip
    assert following(record, done).startswith(next_step)
