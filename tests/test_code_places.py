"""Code in a bucket: read with the secret that is named, and nothing else; what lies there is a directory of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamops.model.errors import DefinitionError, NotFoundError
from streamops.settings import ENV_FILE, Settings
from streamops.store.object_store import ObjectStore
from streamops.versions import code


@pytest.fixture
def store(bucket: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A bucket with a job's code, which the secret ``my-code`` opens."""
    secret = {
        "ENDPOINT": bucket.s3_endpoint,
        "ACCESS_KEY": bucket.s3_access_key,
        "SECRET_KEY": bucket.s3_secret_key.get_secret_value(),
    }
    private = tmp_path / "stack.env"
    private.write_text("".join(f"MY_CODE_{key}={value}\n" for key, value in secret.items()))
    monkeypatch.setenv(ENV_FILE, str(private))
    store = ObjectStore(bucket)
    for name in ("jobs/tx/v1.yaml", "jobs/tx/tx.py", "jobs/tx/more/__init__.py", "jobs/tx-other/tx.py"):
        store.put(name, name.encode())
    return store


def test_a_directory_of_a_bucket_is_here_while_it_is_used(store: ObjectStore, tmp_path: Path) -> None:
    with code.directory(f"s3://{store.bucket}/jobs/tx/", "my-code", tmp_path) as place:
        found = {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}
    assert found == {name: f"jobs/tx/{name}" for name in ("v1.yaml", "tx.py", "more/__init__.py")}
    assert not place.exists()


def test_a_path_begins_beside_its_file() -> None:
    with code.directory("../jobs", None, Path("/files")) as place:
        assert place == Path("/files/../jobs")


@pytest.mark.parametrize(
    ("directory", "secret", "says"),
    [("jobs/none", "my-code", "There is nothing in s3"), ("jobs/tx", "other", "There is no secret other here")],
)
def test_what_is_not_there_is_said(store: ObjectStore, directory: str, secret: str, says: str) -> None:
    with (
        pytest.raises(NotFoundError, match=says),
        code.directory(f"s3://{store.bucket}/{directory}", secret, Path()),
    ):
        pass


def test_a_name_that_leads_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    for name in ("../x", "a/../../x", "/etc/x"):
        with pytest.raises(DefinitionError, match="not the name of a file"):
            code.inside(tmp_path, name)
    assert code.inside(tmp_path, "a/b.py") == tmp_path / "a" / "b.py"
