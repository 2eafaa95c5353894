"""A test's second try leaves nothing behind.

pytest-rerunfailures takes the finalizers of modules and of the session off pytest's stack between two tries, and puts
them back in place of those that the second try added. A fixture that only the second try could set up would so never
be ended: its job went on in the test stack, and took the cores of the tests after it.
"""

from __future__ import annotations

import pytest
import pytest_rerunfailures


@pytest.hookimpl(tryfirst=True)  # before pytest-rerunfailures puts them back
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What the first try left and what this one added will both be ended, the newest first."""
    kept = pytest_rerunfailures.suspended_finalizers
    for node, (added, failure) in item.session._setupstate.stack.items():
        if node in kept:
            before = kept[node][0]
            kept[node] = (before + [finalizer for finalizer in added if finalizer not in before], failure)
