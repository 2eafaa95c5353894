"""docker-compose.yaml against the definitions of the local stack. What it does on an engine: tests/compose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack import builds, configure
from stack.compose import container, secret_files
from stack.layout import PORTS, REPOSITORY, Layout
from stack.programs import AIRFLOW
from streamops.cluster.nodes import passwords
from streamops.model.errors import RefusedError

COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == "streamops"]


def group_of(name: str) -> str | None:
    """The group of secrets that a service mounts, which it may not write."""
    mounted = [item for item in SERVICES[name].get("volumes", []) if item.endswith(":/run/secrets:ro")]
    assert len(mounted) <= 1
    return mounted[0].split(":")[0].removeprefix("secrets-") if mounted else None


def sources(name: str) -> frozenset[str]:
    group = group_of(name)
    return secret_files.GROUPS[group] if group else frozenset()


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
    pings = PORTS["fleet-beta"]
    assert sorted(published) == sorted(f"127.0.0.1:{port}:{port}" for port in [*pages, pings])
    assert SERVICES["fleet-beta"]["profiles"] == ["fleet"]
    assert {address for address, _, _ in secret_files.PAGES.values()} == {f"http://127.0.0.1:{port}" for port in pages}


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


def test_each_group_of_secrets_has_a_volume_that_one_service_writes_and_its_own_read() -> None:
    home = container.layout("secrets", Path("/var/lib/streamops")).secrets
    written = [item for item in SERVICES["secrets"]["volumes"] if not item.startswith("told:")]
    assert written == [f"secrets-{group}:{home}/{group}" for group in secret_files.GROUPS]
    assert {group_of(name) for name in SERVICES if group_of(name)} == set(secret_files.GROUPS)
    others = {name for name in SERVICES if name != "secrets"}
    assert not [name for name in others for item in SERVICES[name].get("volumes", []) if str(home) in item]
    made = re.search(r"for group in ([a-z0-9 -]+); do mkdir", (REPOSITORY / "Dockerfile").read_text())
    assert made
    assert made[1].split() == list(secret_files.GROUPS)  # so that the new volumes belong to who writes them


def test_whatever_has_secrets_starts_after_they_were_made() -> None:
    def waits(name: str) -> set[str]:
        needed = set(SERVICES[name].get("depends_on", {}))
        return needed.union(*map(waits, needed))

    assert [name for name in SERVICES if sources(name) and name != "cli" and "secrets" not in waits(name)] == []


def test_secrets_are_made_once_kept_and_given_to_whoever_gets_them_later(tmp_path: Path) -> None:
    place = Layout(tmp_path)
    secret_files.make(place)
    first = secret_files.read(place.secrets)
    assert first.keys() == secret_files.NAMES
    assert len(set(first.values())) == len(first)
    for group, names in secret_files.GROUPS.items():
        assert secret_files.given(place.secrets / group) == {name: first[name] for name in names}
        assert {file.stat().st_mode & 0o777 for file in (place.secrets / group).iterdir()} == {0o444}
    (place.secrets / "cli" / "SPARK_SECRET").unlink()  # of a release before, whose command line had none
    (place.secrets / "airflow" / ".S3_ACCESS_KEY.7").write_text("ended in the middle of a write")
    (place.secrets / "postgres" / "POSTGRES_PASSWORD").chmod(0o600)  # ended right after it
    (place.secrets / "minio" / "SPARK_SECRET").write_text("of a release before, which had handed it to MinIO")
    secret_files.make(place)
    assert secret_files.read(place.secrets) == first
    assert secret_files.given(place.secrets / "cli")["SPARK_SECRET"] == first["SPARK_SECRET"]
    for group, names in secret_files.GROUPS.items():
        assert {file.name: file.stat().st_mode & 0o777 for file in (place.secrets / group).iterdir()} == dict.fromkeys(
            names, 0o444
        )
    assert secret_files.given(place.secrets / "minio").keys() == secret_files.GROUPS["minio"]


def test_secrets_are_not_made_again_for_servers_that_know_others(tmp_path: Path) -> None:
    place = Layout(tmp_path)
    place.influx_writer.parent.mkdir()
    place.influx_writer.write_text("set up")
    with pytest.raises(RefusedError, match="set up with secrets that are not here"):
        secret_files.make(place)
    assert secret_files.read(place.secrets) == {}


def test_secrets_of_an_earlier_release_are_taken_over_once(tmp_path: Path) -> None:
    place = Layout(tmp_path)
    secret_files.make(Layout(tmp_path / "before"))
    before = secret_files.read(Layout(tmp_path / "before").secrets)
    lines = [
        "# Private\n",
        "STREAMOPS_RATE=500\n",
        *(f"STREAMOPS_SECRET_{key}={value}\n" for key, value in before.items()),
    ]
    with pytest.raises(RefusedError, match="No line"):
        secret_files.take(place, lines[:2])
    secret_files.take(place, lines)
    secret_files.take(place, lines)  # its answer was lost
    assert secret_files.read(place.secrets) == before
    secret_files.make(place)
    assert secret_files.read(place.secrets) == before
    with pytest.raises(RefusedError, match="secrets of its own"):
        secret_files.take(place, ["STREAMOPS_SECRET_SPARK_SECRET=another\n"])


def test_the_logins_are_shown_to_the_one_who_asks(tmp_path: Path) -> None:
    place = Layout(tmp_path)
    secret_files.make(place)
    known = secret_files.read(place.secrets)
    shown = "\n".join(secret_files.pages(known))
    asked = {"GRAFANA_PASSWORD", "AIRFLOW_PASSWORD", "MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD", "INFLUX_PASSWORD"}
    assert {name for name, value in known.items() if value in shown} == asked
    assert "MINIO_ROOT" not in "\n".join(secret_files.pages({}))


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
        "secrets": readable,  # whether there is something
        **dict.fromkeys(container.NODES, readable),
    }


def test_a_node_is_a_machine_of_its_own(tmp_path: Path) -> None:
    place = container.layout("node-3", tmp_path)
    configure.inventory(place)
    listed = yaml.safe_load(place.nodes_file.read_text())
    assert [node["supervisor"] for node in listed["nodes"]] == [f"http://{name}:9010" for name in container.NODES]
    assert listed["nodes"][2]["page"] == "http://node-3:8093"
    assert listed["master"]["supervisor"] == "http://spark-master:9010"


def test_the_limits_of_memory_fit_10_gib() -> None:
    """The spare node's worker runs only after a scale-out, 'secrets' and 'init' end before the others start."""
    passing = {"node-3", "init", "secrets"}
    running = [name for name, service in SERVICES.items() if "profiles" not in service and name not in passing]
    limits = {name: re.search(r"(\d+)m}?$", SERVICES[name]["mem_limit"]) for name in SERVICES}
    assert sum(int(limit[1]) for name in running if (limit := limits[name])) <= 10 * 1024
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
