"""What tests of the local stack share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamops.clients.kafka import Ledger
from streamops.settings import Settings


@pytest.fixture
def ledger(stack: Settings) -> Iterator[Ledger]:
    """The test stack's topics."""
    ledger = Ledger(stack)
    yield ledger
    ledger.close()
