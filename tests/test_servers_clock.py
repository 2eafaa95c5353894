"""Whose requests follow the object store's clock."""

from __future__ import annotations

from datetime import timedelta

import boto3
from botocore.config import Config

from streamops.settings import Settings
from streamops.store.object_store import ObjectStore


def test_only_clients_that_follow_a_server_sign_with_its_time(bucket: Settings) -> None:
    signed: list[str] = []

    def note(request: object, **_: object) -> None:
        signed.append(request.headers["X-Amz-Date"].decode()[:8])  # type: ignore[attr-defined]

    store = ObjectStore(bucket)
    other = boto3.client(
        "s3",
        endpoint_url=bucket.s3_endpoint,
        aws_access_key_id=bucket.s3_access_key,
        aws_secret_access_key=bucket.s3_secret_key.get_secret_value(),
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    for client in (store._s3, other):
        client.meta.events.register("before-send.s3", note)
    store.put("a", b"1")
    other.head_object(Bucket=bucket.s3_bucket, Key="a")
    assert len({*signed}) == 1
    store.clock.ahead = timedelta(days=2)  # as another server said
    other.head_object(Bucket=bucket.s3_bucket, Key="a")
    store.get("a")  # is refused at first: that server's clock is right
    assert signed[2] == signed[0]
    assert signed[3] != signed[0]
    assert store.clock.ahead == timedelta(0)
    assert ObjectStore(bucket).get("a").body == b"1"


def test_a_request_that_was_signed_before_another_one_learned_the_time_is_tried_again(bucket: Settings) -> None:
    store = ObjectStore(bucket)
    store.put("a", b"1")

    def learn(**_: object) -> None:
        store.clock.ahead = timedelta(0)

    store._s3.meta.events.register("before-send.s3", learn)  # by another thread, when it is signed
    store.clock.ahead = timedelta(days=2)
    assert store.get("a").body == b"1"
