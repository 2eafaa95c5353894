"""The execution graph of a version, from its definition and its plans."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fakes.rig import Rig, write_env
from streamops.cli import app
from streamops.model.definitions import Definition, parse
from streamops.settings import REPOSITORY
from streamops.versions import graph as execution
from streamops.versions.fingerprints import Aggregate, Fingerprint, Key, Operator, Slot, Window

JOBS = REPOSITORY / "spark_jobs"
SECOND = Key(
    text="window", type="struct", window=Window(kind="tumbling", time="t", size_us=1_000_000, slide_us=1_000_000)
)
SUM = Aggregate(function="sum", text="sum(trades.price)", buffer=(Slot(type="bigint", nullable=True),))


def plan(*sources: str, operators: tuple[Operator, ...] = ()) -> Fingerprint:
    return Fingerprint(
        spark="4.3.0", output="update", provider="RocksDB", partitions=2, sources=sources, operators=operators
    )


@pytest.fixture
def live() -> Definition:
    """v3 of trade-analyser, two of whose stages read the third."""
    return parse((JOBS / "trade_analyser" / "v3.yaml").read_text())


def test_stages_that_read_a_stage_come_after_it(live: Definition) -> None:
    by = Key(text="trades.symbol", type="string")
    summed = Operator(kind="aggregation", keys=(SECOND, by), aggregates=(SUM,))
    plans = {"avg_1s": plan("trades", operators=(summed,)), "avg_1m": plan("panes"), "vol_1s": plan("panes")}
    found = execution.graph(live, plans, {"trades": "trades@elsewhere:9092"})
    assert [node.id for node in found.roots] == ["source trades"]
    assert found.node("source trades").details == ("topic trades@elsewhere:9092",)
    assert [node.id for node in found.after("source trades")] == ["stage avg_1s"]
    assert [node.id for node in found.after("stage avg_1s")] == ["source panes", "sink avg_1s 1"]
    assert [node.id for node in found.after("source panes")] == ["stage avg_1m", "stage vol_1s"]
    assert found.node("source panes").details == ("what changes in cents, trades, shares of avg_1s",)
    assert found.node("sink avg_1s 1").name == "InfluxDB avg_1s"
    assert found.node("stage avg_1s").details == (
        "in real time, in batches while it is behind",
        "aggregation by tumbling window of 1 second, trades.symbol: sum(trades.price)",
    )
    assert found.node("stage avg_1m").details[-1] == "keeps no state"


def test_without_plans_the_stages_are_there_and_what_is_not_known_is_said(live: Definition) -> None:
    found = execution.graph(live, dict.fromkeys(live.stages))
    assert {node.id for node in found.roots} == {"source trades", *(f"stage {name}" for name in live.stages)}
    assert execution.NO_PLAN in found.node("stage avg_1m").details
    one = parse((JOBS / "trade_analyser" / "v1.yaml").read_text())
    assert [node.id for node in execution.graph(one, {}).roots] == ["source trades"]  # it can read no other


@pytest.mark.parametrize("path", sorted(JOBS.glob("*/v*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_shipped_version_can_be_drawn(path) -> None:
    definition = parse(path.read_text())
    found = execution.graph(definition, {name: plan(*definition.sources) for name in definition.stages})
    ids = [node.id for node in found.nodes]
    assert len(ids) == len(set(ids))
    assert {id_ for edge in found.edges for id_ in edge} <= set(ids)


def test_the_command_draws_it_and_prints_it_for_a_script(rig: Rig, tmp_path, monkeypatch) -> None:
    env = tmp_path / "cli.env"
    write_env(env, rig.settings.model_copy(update={"spark_home": "/nowhere", "spark_conf_dir": "/nowhere"}))
    monkeypatch.setenv("STREAMOPS_ENV_FILE", str(env))
    refused = CliRunner().invoke(app, ["jobs", "graph", "sums"])
    assert (refused.exit_code, "never deployed" in refused.output) == (1, True)
    rig.run("deploy_job", version="v2")
    drawn = CliRunner().invoke(app, ["jobs", "graph", "sums"]).output
    assert "sums v2" in drawn
    for name in ("source events", "stage a", "stage b", "InfluxDB"):
        assert name in drawn
    told = json.loads(CliRunner().invoke(app, ["jobs", "graph", "sums", "--json"]).output)
    assert ["source events", "stage a"] in told["edges"]
    assert (told["version"], set(told["pages"])) == ("v2", {"master", "driver", "queries"})
