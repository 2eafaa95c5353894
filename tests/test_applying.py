"""Declared and present to actions: nothing twice, nothing by omission, and no old file over a newer job."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from streamops.cli import declared
from streamops.cli.applying import Action, Present, PresentJob, PresentTopic, decide, decide_removal
from streamops.model.errors import DefinitionError, RefusedError
from streamops.model.records import Deployment, JobRecord
from streamops.operations.follow import request

AT = datetime(2026, 1, 1, tzinfo=UTC)


def file(**more: Any) -> declared.DeclaredJob:
    return declared.DeclaredJob.model_validate({"kind": "job", "name": "tx", "version": "v1", **more})


def deployment(number: int, version: str, **more: Any) -> Deployment:
    common = {"job": "tx", "artifact_sha256": "", "runtime_sha256": "", "created": AT, "created_by": "op"}
    return Deployment.model_validate({**common, "number": number, "version": version, **more})


def there(desired: str = "running", *versions: str, snapshots: tuple[str, ...] = (), **more: Any) -> Present:
    deployments = [deployment(number, version, **more) for number, version in enumerate(versions, 1)]
    record = JobRecord.model_validate(
        {
            "job": "tx",
            "desired": desired,
            "version": versions[-1],
            "deployment": len(versions),
            "snapshot": snapshots[-1] if desired == "stopped-with-snapshot" else None,
        }
    )
    job = PresentJob(record, tuple(deployments), ("v1", "v2"), snapshots)
    return Present("streamops", 2, {"tx": job})


EMPTY = Present("streamops", 2, {"tx": PresentJob(published=("v1",))})


def only(wanted: declared.Declared, present: Present) -> Action:
    (action,) = decide(wanted, present)
    return action


def done(action: Action) -> dict[str, Any]:
    """The action as a request: what the runbook's form will check."""
    request(action.verb, **action.values)
    return {"verb": action.verb, **action.values}


def test_a_job_that_was_never_deployed_is_deployed() -> None:
    assert done(only(file(), EMPTY)) == {"verb": "deploy_job", "job": "tx", "version": "v1"}
    topics = {"create_topics": 3, "topic_retention_h": 24}
    assert done(only(file(**topics), EMPTY)) == {"verb": "deploy_job", "job": "tx", "version": "v1", **topics}
    assert only(file(**topics), there("running", "v1")).verb == "none"


def test_a_version_that_is_not_published_is_published_first_or_refused() -> None:
    actions = decide(file(version="v3", code="tx"), EMPTY)
    assert [action.verb for action in actions] == ["publish", "deploy_job"]
    with pytest.raises(RefusedError, match=r"no version v3 \(published: v1\)"):
        decide(file(version="v3"), EMPTY)


@pytest.mark.parametrize(
    ("wanted", "present"),
    [
        (file(), there("running", "v1")),
        (file(state="stopped"), there("stopped", "v1")),
        (file(state="stopped"), there("stopped-with-snapshot", "v1", snapshots=("s",))),
        (file(version="v2", initial_snapshot="s"), there("running", "v1", "v2", snapshots=("s",))),
        (file(addresses={"alpha": "/data"}), there("running", "v1", topics={"alpha": "/data"})),
        (declared.DeclaredSnapshot(kind="snapshot", name="s", job="tx"), there("running", "v1", snapshots=("s",))),
        (declared.DeclaredCluster(kind="cluster", size=2), EMPTY),
    ],
)
def test_what_is_as_declared_is_left_alone(wanted: declared.Declared, present: Present) -> None:
    action = only(wanted, present)
    assert not action.changes
    assert "as declared" in action.why


def test_a_running_job_gets_its_new_version_by_an_upgrade() -> None:
    assert done(only(file(version="v2"), there("running", "v1"))) == {
        "verb": "upgrade_job", "job": "tx", "version": "v2",
    }  # fmt: skip


def test_a_changed_setting_is_an_upgrade_that_names_the_change() -> None:
    larger = file(resources={"cores": 4, "driver_memory": "1g"})
    action = only(larger, there("running", "v1", resources={"cores": 2, "driver_memory": "1g"}))
    assert (action.verb, action.why) == ("upgrade_job", "resources.cores: 2 -> 4")
    assert action.values == {"job": "tx", "version": "v1", "cores": 4, "driver_memory": "1g"}
    assert only(larger, there("running", "v1", resources=larger.resources.given)).verb == "none"
    action = only(file(logging={"sink": "DEBUG"}), there("running", "v1", logging={"sink": "INFO"}))
    assert done(action) == {"verb": "upgrade_job", "job": "tx", "version": "v1", "logging": {"sink": "DEBUG"}}
    assert action.why == "logging.sink: INFO -> DEBUG"


def test_where_a_source_begins_in_another_topic_is_said_to_an_upgrade_and_to_a_start_from_a_snapshot() -> None:
    other = {"topics": {"tx": "tx-2"}, "start_at": {"tx": "earliest"}}
    upgrade = {"verb": "upgrade_job", "job": "tx", **other}
    assert done(only(file(**other), there("running", "v1"))) == {**upgrade, "version": "v1"}
    assert only(file(**other), there("running", "v1", topics=other["topics"])).verb == "none"
    del upgrade["topics"]  # the new version's own are others
    assert done(only(file(version="v2", start_at=other["start_at"]), there("running", "v1"))) == {
        **upgrade, "version": "v2",
    }  # fmt: skip
    stopped = there("stopped-with-snapshot", "v1", snapshots=("s",))
    assert done(only(file(version="v2", initial_snapshot="s", **other), stopped))["start_at"] == {"tx": "earliest"}
    assert "start_at" not in done(only(file(**other), EMPTY))


def test_another_version_of_the_shared_library_is_an_upgrade_that_names_the_change() -> None:
    used = {"library": {"name": "shared", "version": "v1", "sha256": "0"}}
    present = there("running", "v1", **used)
    assert only(file(library="shared/v1"), present).verb == "none"
    assert only(file(), present).verb == "none"
    action = only(file(library="shared/v2"), present)
    assert action.why == "library: shared/v1 -> shared/v2"
    assert done(action) == {"verb": "upgrade_job", "job": "tx", "version": "v1", "library": "shared/v2"}


def test_a_running_job_that_shall_be_stopped_is_cancelled() -> None:
    assert done(only(file(state="stopped"), there("running", "v1"))) == {"verb": "cancel_job", "job": "tx"}


@pytest.mark.parametrize("desired", ["stopped", "stopped-with-snapshot"])
def test_a_stopped_job_of_the_same_version_continues_from_its_own_checkpoint(desired: str) -> None:
    assert done(only(file(), there(desired, "v1", snapshots=("s",))))["verb"] == "start_job"


def test_another_version_starts_from_the_declared_snapshot_and_never_without_one() -> None:
    present = there("stopped-with-snapshot", "v1", snapshots=("before", "s"))
    action = only(file(version="v2", initial_snapshot="s"), present)
    assert done(action) == {"verb": "deploy_job", "job": "tx", "version": "v2", "from_snapshot": "s"}
    with pytest.raises(RefusedError, match=r"process everything again.*before, s.*from_scratch: true"):
        decide(file(version="v2"), present)
    assert done(only(file(version="v2", from_scratch=True), present))["from_scratch"] is True


def test_another_jobs_snapshot_is_a_fork() -> None:
    assert done(only(file(initial_snapshot="other/s"), EMPTY))["fork"] is True


@pytest.mark.parametrize("desired", ["running", "stopped"])
def test_a_stale_file_is_refused_with_the_difference(desired: str) -> None:
    with pytest.raises(RefusedError, match=r"stale.*v1, which was replaced by v2 on 2026-01-01.*1 -> 2"):
        decide(file(), there(desired, "v1", "v2"))


def test_a_snapshot_is_taken_with_or_without_cancelling_its_job() -> None:
    wanted = declared.DeclaredSnapshot(kind="snapshot", name="s", job="tx", cancel=True)
    assert done(only(wanted, there("running", "v1"))) == {
        "verb": "snapshot_job", "job": "tx", "snapshot": "s", "cancel": True,
    }  # fmt: skip
    with pytest.raises(RefusedError, match="is stopped; start it"):
        decide(wanted, there("stopped", "v1"))


def test_a_cluster_that_was_shut_down_is_brought_up_and_then_has_its_size() -> None:
    stopped = replace(EMPTY, cluster="stopped")
    action = only(declared.DeclaredCluster(kind="cluster", size=2), stopped)
    assert (done(action), action.why) == ({"verb": "restart_cluster"}, "it is stopped")
    actions = decide(declared.DeclaredCluster(kind="cluster", size=3), stopped)
    assert [action.verb for action in actions] == ["restart_cluster", "scale_cluster"]


def test_a_cluster_of_another_size_is_scaled() -> None:
    action = only(declared.DeclaredCluster(kind="cluster", size=3), EMPTY)
    assert (action.verb, action.values) == ("scale_cluster", {"size": 3})


def topic(**more: Any) -> declared.DeclaredTopic:
    return declared.DeclaredTopic.model_validate({"kind": "topic", "name": "tx", **more})


def test_a_topic_that_is_missing_is_made_and_one_that_differs_is_refused() -> None:
    action = only(topic(partitions=3, retention_h=24), EMPTY)
    assert (action.verb, action.values) == (
        "create_topic", {"topic": "tx", "partitions": 3, "config": {"retention.ms": "86400000"}},
    )  # fmt: skip
    assert only(topic(), EMPTY).values["config"] == {}
    present = replace(EMPTY, topics={"tx": PresentTopic(3, 86_400_000)})
    assert not only(topic(partitions=3, retention_h=24), present).changes
    assert not only(topic(partitions=3), present).changes
    with pytest.raises(RefusedError, match=r"partitions: 3 -> 1, retention in ms: 86400000 -> 3600000"):
        decide(topic(retention_h=1), present)


SNAPSHOT = declared.DeclaredSnapshot(kind="snapshot", name="s", job="tx")
CLUSTER = declared.DeclaredCluster(kind="cluster", size=2)


def removed(present: Present, *items: declared.Declared) -> list[dict[str, Any]]:
    return [done(action) for action in decide_removal(items, present) if action.changes]


def test_a_job_is_deleted_once_with_its_snapshots_and_its_topic_and_the_cluster_last() -> None:
    present = replace(there("stopped", "v1", snapshots=("s",)), topics={"tx": PresentTopic(1, -1)})
    present = replace(present, jobs={"tx": replace(present.jobs["tx"], reads=frozenset({"tx"}))})
    assert removed(present, CLUSTER, topic(), file(), SNAPSHOT, file(version="v2")) == [
        {"verb": "delete_job", "job": "tx", "topics": ("tx",)},
        {"verb": "shutdown_cluster"},
    ]
    assert removed(present, file()) == [{"verb": "delete_job", "job": "tx"}]
    with pytest.raises(RefusedError, match="No job of these files reads the topic tx"):
        decide_removal([topic()], present)


def test_a_topic_that_two_jobs_read_goes_with_the_second() -> None:
    reader = PresentJob(published=("v1",), reads=frozenset({"tx"}))
    present = Present("streamops", 2, {"tx": reader, "other": reader}, topics={"tx": PresentTopic(1, -1)})
    assert removed(present, topic(), file(), file(name="other")) == [
        {"verb": "delete_job", "job": "tx"},
        {"verb": "delete_job", "job": "other", "topics": ("tx",)},
    ]


def test_a_snapshot_without_its_job_is_removed_alone() -> None:
    (action,) = removed(there("running", "v1", snapshots=("s",)), SNAPSHOT)
    assert (action["verb"], action["action"], action["snapshot"]) == ("manage_snapshot", "remove", "s")


def test_what_is_gone_already_is_nothing_to_delete() -> None:
    nothing = Present("streamops", 2, {"tx": PresentJob()}, cluster="stopped")
    assert removed(nothing, CLUSTER, topic(), file(), SNAPSHOT) == []
    (action,) = decide_removal([SNAPSHOT], nothing)
    assert action.why == "snapshot tx/s is not there"


def test_a_job_for_another_bucket_is_refused() -> None:
    assert decide(file(bucket="streamops"), EMPTY)
    with pytest.raises(RefusedError, match="bucket other"):
        decide(file(bucket="other"), EMPTY)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "declares nothing"),
        ("kind: pod\nname: x\n", "document 1"),
        ("kind: job\nname: tx\n", "version: Field required"),
        ("kind: job\nname: tx\nversion: v1\nstat: running\n", "stat"),
        ("kind: cluster\nsize: 2\n---\nkind: cluster\nsize: 0\n", "document 2: size"),
        ("kind: job\nname: tx\nversion: v1\ninitial_snapshot: s\nfrom_scratch: true\n", "choose one"),
        ("kind: job\nname: tx\nversion: v1\ncode: s3://bucket/jobs\n", "secret: goes with code from s3://"),
        ("kind: job\nname: tx\nversion: v1\ncode: jobs\nsecret: mine\n", "secret: goes with code from s3://"),
        ("kind: topic\nname: tx\npartitions: 0\n", "partitions"),
        ("kind: [", "line"),
        ("kind: job\nname: ../tx\nversion: v1\n", "name"),
    ],
)
def test_a_wrong_file_is_an_error_that_says_where(text: str, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        declared.parse(text)


def test_a_file_holds_several_documents_in_order() -> None:
    found = declared.parse("kind: cluster\nsize: 2\n---\nkind: job\nname: tx\nversion: v1\n---\n")
    assert [item.kind for item in found] == ["cluster", "job"]
