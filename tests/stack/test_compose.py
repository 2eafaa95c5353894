"""docker-compose.yaml against the definitions of the local stack. What it does on an engine: tests/compose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack import builds, configure
from stack.compose import container, engine, host
from stack.layout import PORTS, REPOSITORY
from stack.programs import AIRFLOW
from streamops.cluster.nodes import passwords
from streamops.model.errors import RefusedError
from streamops.settings import read_pairs

COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == "streamops"]


def sources(name: str) -> set[str]:
    return set(SERVICES[name].get("secrets", []))


def test_every_service_of_our_image_is_one_that_the_image_knows() -> None:
    for name in OURS:
        words = SERVICES[name].get("entrypoint") or SERVICES[name]["command"]
        assert words == [".venv/bin/python", "-m", "stack.compose.container", name]
    assert set(OURS) == set(container.SERVICES)


def test_each_service_is_reached_by_its_own_name() -> None:
    reached = set(container.layout("cli").hosts.values())
    assert reached <= set(SERVICES)
    for name in reached & set(OURS):
        assert SERVICES[name]["hostname"] == name


def test_the_broker_has_the_settings_of_the_local_one() -> None:
    wanted = configure.kafka_settings(container.layout("kafka")) | {"log.dirs": "/var/lib/kafka/data"}
    given = SERVICES["kafka"]["environment"].copy()
    assert given.pop("CLUSTER_ID")
    assert given.pop("KAFKA_HEAP_OPTS")
    assert given.pop("KAFKA_OPTS") == "-XX:+ExitOnOutOfMemoryError"
    assert given == {f"KAFKA_{key.upper().replace('.', '_')}": str(value) for key, value in wanted.items()}


def test_published_images_have_the_versions_of_the_local_servers() -> None:
    kafka = re.search(r"<artifactId>kafka_2.13</artifactId><version>(.+?)<", _pin("kafka", "pom.xml"))
    influxdb = re.search(r"influxdata/influxdb/v2 v(\S+)", _pin("influxd", "go.mod"))
    assert kafka
    assert influxdb
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{kafka[1]}"
    assert SERVICES["influxdb"]["image"] == f"influxdb:{influxdb[1]}"


def _pin(server: str, name: str) -> str:
    return (builds.PINS / server / name).read_text()


def test_only_pages_for_people_are_published_and_on_loopback_alone() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    pages = [PORTS[name] for name in ("airflow", "spark-master-ui", "minio-console", "influxd")] + [3000]
    assert sorted(published) == sorted(f"127.0.0.1:{port}:{port}" for port in pages)
    assert {address for address, _, _ in host.PAGES.values()} == {f"http://127.0.0.1:{port}" for port in pages}


def test_the_servers_listen_where_the_definitions_say() -> None:
    minio = SERVICES["minio"]["command"]
    assert minio[minio.index("--address") + 1] == f":{PORTS['minio']}"
    assert minio[minio.index("--console-address") + 1] == f":{PORTS['minio-console']}"
    assert SERVICES["influxdb"]["environment"]["INFLUXD_HTTP_BIND_ADDRESS"] == f":{PORTS['influxd']}"
    place = container.layout("airflow-scheduler")
    assert place.url("minio") == "http://minio:9000"
    assert place.url("influxd") == "http://influxdb:8086"
    assert place.address("spark-master") == "spark-master:7077"


def test_no_secret_is_spelled_out_or_passed_in_the_environment() -> None:
    for name, service in SERVICES.items():
        for key in service.get("environment", {}):
            secret = any(word in key for word in ("PASSWORD", "TOKEN", "SECRET", "ROOT_USER"))
            assert not secret or key.endswith("FILE"), f"{name}: {key}"


def test_every_secret_is_a_line_of_the_private_file_and_is_used(tmp_path: Path) -> None:
    host.write_secrets(tmp_path / ".env")
    written = read_pairs(tmp_path / ".env")
    used = set().union(*(sources(name) for name in SERVICES))
    assert used == set(COMPOSE["secrets"])
    assert {f"{host.PREFIX}{name}" for name in used} <= set(written)
    assert all(value == {"environment": f"{host.PREFIX}{name}"} for name, value in COMPOSE["secrets"].items())
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600


def test_secrets_are_written_once_and_kept(tmp_path: Path) -> None:
    host.write_secrets(tmp_path / ".env")
    before = (tmp_path / ".env").read_text()
    host.write_secrets(tmp_path / ".env")
    assert (tmp_path / ".env").read_text() == before


@pytest.mark.parametrize("name", [*container.NODES, "spark-master", *AIRFLOW, "init", "cli"])
def test_each_container_has_the_secrets_that_its_configuration_needs(name: str, tmp_path: Path) -> None:
    place = container.layout(name, tmp_path / "home")
    given = tmp_path / "secrets"
    given.mkdir()
    for source in sources(name):
        (given / source).write_text(f"{source.lower()}\n")
    pairs = container.prepare(place, tmp_path / "spark", given)
    place.run.mkdir(parents=True, exist_ok=True)
    if name in (*container.NODES, "spark-master"):
        configure.node(place, pairs)
        of = "MASTER" if name == "spark-master" else name.upper().replace("-", "_")
        assert [key for key in pairs if "SUPERVISOR_PASSWORD" in key] == [f"SUPERVISOR_PASSWORD_{of}"]
        others = {"INFLUX_TOKEN", "S3_ACCESS_KEY", "S3_RETENTION_ACCESS_KEY", "S3_LOGS_ACCESS_KEY"}
        assert not {*others, "SNAPSHOT_KEYS", "AIRFLOW_PASSWORD"} & set(pairs)
    elif name == "cli":
        airflows = {"AIRFLOW_JWT_SECRET", "AIRFLOW_SECRET_KEY", "AIRFLOW_FERNET_KEY", "S3_LOGS_ACCESS_KEY"}
        assert not {*airflows, "POSTGRES_PASSWORD"} & set(pairs)
    else:
        configure.airflow(place, pairs)
        assert "@postgres:5432/" in (place.airflow / "airflow.cfg").read_text()
        assert "s3_logs_secret_key" in (place.airflow / "connections.json").read_text()
    if name in (*AIRFLOW, "cli"):
        container._acts_on_nodes(place, pairs)
        known = passwords(place.nodes_private)
        assert known == {"user": "streamops"} | {
            f"password.{node}": f"supervisor_password_{node.replace('-', '_')}" for node in ("master", *container.NODES)
        }
        assert not {"MINIO_ROOT_PASSWORD", "S3_JOBS_ACCESS_KEY", "INFLUX_PASSWORD"} & set(pairs)
    if name != "init":
        assert "spark.authenticate.secret spark_secret\n" in (place.submit_conf / "spark-defaults.conf").read_text()


def test_what_influxdb_tells_the_one_that_asks_reaches_every_node_and_no_one_else(tmp_path: Path) -> None:
    place = container.layout("init", Path("/var/lib/streamops")).influx_writer.parent
    mounted = {name: [item for item in SERVICES[name].get("volumes", []) if item.startswith("told:")] for name in OURS}
    writable, readable = [f"told:{place}"], [f"told:{place}:ro"]
    assert {name: item for name, item in mounted.items() if item} == {
        "init": writable,
        **dict.fromkeys(container.NODES, readable),
    }


def test_a_node_is_a_machine_of_its_own(tmp_path: Path) -> None:
    place = container.layout("node-3", tmp_path)
    configure.inventory(place)
    listed = yaml.safe_load(place.nodes_file.read_text())
    assert [node["supervisor"] for node in listed["nodes"]] == [f"http://{name}:9010" for name in container.NODES]
    assert listed["nodes"][2]["page"] == "http://node-3:8093"
    assert listed["master"]["supervisor"] == "http://spark-master:9010"


def test_the_limits_of_memory_fit_8_gib() -> None:
    """The spare node's worker runs only after a scale-out, 'init' ends before the others start."""
    passing = {"node-3", "init"}
    running = [name for name, service in SERVICES.items() if "profiles" not in service and name not in passing]
    limits = {name: re.search(r"(\d+)m}?$", SERVICES[name]["mem_limit"]) for name in SERVICES}
    assert sum(int(limit[1]) for name in running if (limit := limits[name])) <= 8 * 1024
    assert all(limits.values())


def test_what_must_last_lies_in_volumes_and_every_volume_is_used() -> None:
    named = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert {name for name in named if not name.startswith(".")} == set(COMPOSE["volumes"])
    assert all((REPOSITORY / name).is_dir() for name in named if name.startswith("."))


def test_every_service_waits_for_one_that_exists_and_can_tell() -> None:
    for name, service in SERVICES.items():
        for needed, condition in service.get("depends_on", {}).items():
            assert needed in SERVICES, name
            assert condition["condition"] != "service_healthy" or "healthcheck" in SERVICES[needed], name


def test_no_container_runs_as_root() -> None:
    users = {name: service["user"] for name, service in SERVICES.items() if "user" in service}
    assert not any(user.split(":")[0] in ("0", "root") for user in users.values())
    built = {name for name, service in SERVICES.items() if service["image"].startswith("streamops")}
    assert set(users) | built == set(SERVICES)
    stages = (REPOSITORY / "Dockerfile").read_text().split("\nFROM ")[1:]
    for target in ("minio", "streamops"):
        stage = next(stage for stage in stages if f" AS {target}\n" in stage)
        assert re.search(r"^USER (streamops|10001)", stage, re.MULTILINE), target


def test_grafana_finds_its_dashboards_and_what_its_data_source_reads() -> None:
    provisioning = REPOSITORY / "include" / "stack" / "compose" / "grafana" / "provisioning"
    text = "".join(path.read_text() for path in provisioning.rglob("*.yaml"))
    targets = {volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]}
    assert set(re.findall(r"/run/secrets/(\w+)", text)) <= sources("grafana")
    assert set(re.findall(r"path: (\S+)", text)) <= targets
    assert {f"/etc/grafana/provisioning/{path.name}" for path in provisioning.iterdir()} <= targets


def test_secrets_are_not_made_again_for_servers_that_know_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho streamops_postgres\n")
    docker.chmod(0o755)
    tools = engine.Tools((str(docker),), (str(docker), "compose"))
    monkeypatch.setattr(host, "ENV", tmp_path / ".env")
    with pytest.raises(RefusedError, match="volumes of an earlier start"):
        host._secrets_fit(tools)
    host.write_secrets(tmp_path / ".env")
    host._secrets_fit(tools)


def test_what_else_stands_in_the_private_file_stays(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("STREAMOPS_RATE=500\n")
    host.write_secrets(tmp_path / ".env")
    assert read_pairs(tmp_path / ".env")["STREAMOPS_RATE"] == "500"
