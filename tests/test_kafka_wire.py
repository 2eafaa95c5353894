"""What a broker's answers about a topic mean, when it has not heard of the topic yet."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka import errors

from streamops.clients.kafka_wire import Broker
from streamops.model.errors import NotFoundError, UnreachableError

UNKNOWN = SimpleNamespace(error_code=errors.UnknownTopicOrPartitionError.errno, partitions=[])
KNOWN = SimpleNamespace(error_code=0, partitions=[SimpleNamespace(partition_index=0, leader_id=1)])


class Slow(Broker):
    """A broker whose first answers come from before the topic was made."""

    def __init__(self, unknown: int, timeout_s: float = 60) -> None:
        super().__init__("127.0.0.1:1", timeout_s)
        self.unknown = unknown

    def call(self, request, node=None, timeout_s=None):
        self.unknown -= 1
        return SimpleNamespace(topics=[UNKNOWN if self.unknown >= 0 else KNOWN])


def test_a_topic_that_was_just_made_is_waited_for_until_the_broker_knows_it():
    assert Slow(unknown=2).partitions("trades", created=True) == [0]


def test_a_broker_that_never_hears_of_it_is_not_waited_for_for_ever():
    with pytest.raises(UnreachableError):
        Slow(unknown=1000, timeout_s=0.1).partitions("trades", created=True)


def test_a_topic_that_nobody_made_is_refused_at_once():
    broker = Slow(unknown=1)
    with pytest.raises(NotFoundError, match="has no topic trades"):
        broker.partitions("trades")
    assert broker.unknown == 0
