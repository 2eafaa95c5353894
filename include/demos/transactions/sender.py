"""The transactions of the tutorial, and sending them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing

from kafka import KafkaProducer

from streamops.settings import Settings

TOPIC = "transactions"
TRANSACTIONS = {
    1: {"description": "Online Purchase", "amount": 75.99, "transactionDate": "2023-08-09T15:30:00Z"},
    2: {"description": "Grocery Shopping", "amount": 42.75, "transactionDate": "2023-08-10T10:15:00Z"},
    3: {"description": "Restaurant Dinner", "amount": 120.50, "transactionDate": "2023-08-11T20:00:00Z"},
    4: {"description": "Movie Tickets", "amount": 25.00, "transactionDate": "2023-08-12T18:45:00Z"},
    5: {"description": "Gasoline Refill", "amount": 50.30, "transactionDate": "2023-08-13T09:00:00Z"},
}


def name(number: int) -> str:
    """The key of a transaction."""
    return f"transaction-{number}"


def payload(number: int) -> str:
    """What it says."""
    return json.dumps(TRANSACTIONS[number])


def send(settings: Settings, numbers: Sequence[int]) -> list[str]:
    """Send transactions, and return once Kafka has them, with a line for each."""
    with closing(KafkaProducer(bootstrap_servers=settings.kafka_bootstrap_servers)) as producer:
        for number in numbers:
            producer.send(TOPIC, payload(number).encode(), key=name(number).encode())
        producer.flush(30)
    return [f"sent {name(number)}: {payload(number)}" for number in numbers]


def logged(version: str, number: int) -> str:
    """What version ``V1`` or ``V2`` of the job logs of it."""
    return f"[Job {version}] transaction:'{name(number)}' payload:'{payload(number)}'"
