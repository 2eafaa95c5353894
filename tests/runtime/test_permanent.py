"""Which failures of a query end a job for good. An object store that is away for a minute must not."""

import pytest

from streamops.model.errors import DefinitionError, UnreachableError
from streamops_runtime.work import permanent

STAGE = "Job aborted due to stage failure: Task 3 in stage 12.0 failed 4 times, most recent failure: "


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (False, "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error.\nCaused by: java.net.ConnectException: refused"),
        (False, "[CANNOT_LOAD_STATE_STORE.FAILED_TO_GET_CHANGELOG_WRITER] Failed\nCaused by: SdkClientException"),
        (False, "[CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR] not released after 60000 ms"),
        (False, "[CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY] Could not load"),
        (False, "[CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Cannot perform commit during state checkpoint."),
        (False, "java.io.FileNotFoundException: /tmp/blockmgr/shuffle.index"),
        (True, "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error.\nCaused by: java.io.FileNotFoundException: s3a://a"),
        (True, "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE] Error reading snapshot file"),
        (True, "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match"),
        (True, "Some data may have been lost because they are not available in Kafka any more"),
    ],
)
def test_only_what_no_retry_cures_is_permanent(ends: bool, text: str) -> None:
    assert permanent(None, STAGE + text) is ends


def test_a_sink_that_refuses_is_permanent_and_one_that_is_away_is_not() -> None:
    assert permanent(DefinitionError("refused"), "")
    assert not permanent(UnreachableError("away"), STAGE + "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_CHECKPOINT]")
