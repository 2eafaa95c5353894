"""What drivers are at a real InfluxDB: they write into their bucket, and are refused everything else."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr

from fakes import influx_server
from stack import configure, ready
from stack.layout import Layout
from streamops.clients.influx import Points
from streamops.clients.provision import ensure_influx_writer
from streamops.model.errors import StreamOpsError, UnreachableError
from streamops.settings import Settings, read_pairs


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    with influx_server.stack(tmp_path_factory.mktemp("stack")) as layout:
        yield layout


@pytest.fixture(scope="module")
def everything(layout: Layout) -> Settings:
    return Settings.load(layout.env_file)


@pytest.fixture(scope="module")
def driver(layout: Layout) -> Settings:
    """What every driver reads."""
    return Settings.load(layout.node / "node.env")


def test_a_driver_writes_into_its_bucket(driver: Settings, everything: Settings) -> None:
    Points(driver).write_lines(["m value=1.5 1000"])
    assert list(Points(everything).read("m", 0, 2000)) == [(1000, (), 1.5)]


def test_a_driver_does_not_read_and_does_nothing_elsewhere(driver: Settings, everything: Settings) -> None:
    Points(everything).write_lines(["kept value=2.5 1000"])
    points, elsewhere = Points(driver), Points(driver.model_copy(update={"influx_bucket": "_monitoring"}))
    for forbidden in (
        lambda: points.records("from(bucket: bucket) |> range(start: 0)"),
        lambda: list(points.read("kept", 0, 2000)),
        lambda: elsewhere.write_lines(["m value=1 1"]),
        lambda: elsewhere.delete("kept", 0, 2000),  # in its own it may: to InfluxDB, a deletion is a write
    ):
        with pytest.raises(StreamOpsError) as refused:
            forbidden()
        assert not isinstance(refused.value, UnreachableError)
    assert list(Points(everything).read("kept", 0, 2000)) == [(1000, (), 2.5)]


def test_a_driver_sees_and_makes_no_token_bucket_or_user(driver: Settings, everything: Settings) -> None:
    def client(settings: Settings) -> httpx.Client:
        token = settings.influx_token.get_secret_value()
        return httpx.Client(base_url=driver.influx_url, headers={"Authorization": f"Token {token}"}, trust_env=False)

    with client(everything) as operator, client(driver) as own:
        organisation = operator.get("/api/v2/orgs").json()["orgs"][0]["id"]
        for what in ("authorizations", "buckets", "orgs", "users"):
            assert operator.get(f"/api/v2/{what}").json()[what]
            answer = own.get(f"/api/v2/{what}")
            assert answer.status_code in (401, 403) or answer.json()[what] == [], what
        everywhere = {"action": "read", "resource": {"type": "buckets", "orgID": organisation}}
        more = {"orgID": organisation, "permissions": [everywhere]}
        assert own.post("/api/v2/authorizations", json=more).status_code in (401, 403)
        assert own.post("/api/v2/buckets", json={"orgID": organisation, "name": "more"}).status_code in (401, 403)


def test_the_token_stays_over_starts_and_one_that_was_lost_is_replaced_and_refused(
    layout: Layout, driver: Settings, everything: Settings
) -> None:
    own = driver.influx_token.get_secret_value()
    assert ready.influxd(layout) == ""
    assert layout.influx_writer.read_text() == own
    layout.influx_writer.unlink()
    assert ready.influxd(layout) == ""
    another = layout.influx_writer.read_text()
    assert another != own
    with pytest.raises(StreamOpsError, match="refused a write"):
        Points(driver).write_lines(["m value=1 1"])
    Points(driver.model_copy(update={"influx_token": SecretStr(another)})).write_lines(["m value=1 1"])
    assert ensure_influx_writer(everything, "unknown") not in ("unknown", own, another)


def test_the_token_that_may_do_everything_is_on_no_node(layout: Layout, everything: Settings) -> None:
    secret = everything.influx_token.get_secret_value()
    assert not [path for path in layout.node.rglob("*") if path.is_file() and secret in path.read_text()]
    assert "INFLUX_USER" not in read_pairs(layout.node / "node.env")
    assert layout.influx_writer.stat().st_mode & 0o077 == 0


def test_a_sinks_secret_that_a_person_adds_on_a_node_stays_over_starts(layout: Layout) -> None:
    path, pairs = layout.node / "node.env", read_pairs(layout.env_file)
    path.write_text(f"{path.read_text()}OTHER_TOKEN=theirs\nINFLUX_USER=of an older release\n")
    configure.node(layout, pairs)
    found = read_pairs(path)
    assert found["OTHER_TOKEN"] == "theirs"
    assert "INFLUX_USER" not in found
    assert found["INFLUX_TOKEN"] == layout.influx_writer.read_text()
