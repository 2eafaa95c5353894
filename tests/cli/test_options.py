"""Commands take what a request can hold, by names that people know, and leave the rest to it."""

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from streamops.cli.options import Options
from streamops.operations.follow import request
from streamops.operations.requests import fields
from streamops.operations.runbooks import RUNBOOKS


def given(runbook: str, *words: str, **spelled: str) -> dict[str, Any]:
    """What a command line says of a request."""
    options, found = Options(runbook, spelled), list[dict[str, Any]]()
    app = typer.Typer()
    app.command()(options.command(found.append))
    ended = CliRunner().invoke(app, list(words))
    assert ended.exit_code == 0, ended.output
    return options.values(found[0])


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_every_field_is_shown_with_what_it_means(runbook):
    app = typer.Typer(rich_markup_mode=None)
    app.command()(Options(runbook).command(print))
    shown = " ".join(CliRunner().invoke(app, ["--help"], terminal_width=100).output.split())
    asked = fields(RUNBOOKS[runbook].request)
    assert asked
    for name, field in asked.items():
        assert field["description"] in shown, name


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_what_is_not_said_is_left_to_the_request(runbook):
    asked = {name: field["type"] for name, field in fields(RUNBOOKS[runbook].request).items() if field["required"]}
    words = ["x=1" if kind == "object" else "x1" for kind in asked.values()]
    said = {name: {"x": "1"} if kind == "object" else "x1" for name, kind in asked.items()}
    assert given(runbook, *words, **{name: name.upper() for name in asked}) == said


def test_each_kind_of_value():
    found = given(
        "deploy_job", "j", "v1", "--param", "size=3", "--param", "window=5 minutes", "--param", "late=true",
        "--topic", "trades=t2", "--log-level", "a.b=DEBUG", "--from", "other/s", "--fork",
        "--accept-loss", "one", "--accept-loss", "two", "--timeout", "33",
    )  # fmt: skip
    assert found == {
        "job": "j",
        "version": "v1",
        "params": {"size": 3, "window": "5 minutes", "late": True},
        "topics": {"trades": "t2"},
        "logging": {"a.b": "DEBUG"},
        "from_snapshot": "other/s",
        "fork": True,
        "accept_loss": ["one", "two"],
        "healthy_timeout_s": 33,
    }
    assert request("deploy_job", **found).accept_loss == ("one", "two")


def test_what_is_on_can_be_switched_off():
    assert given("upgrade_job", "j", "v2", "--no-standby", "--no-recount", "--probation", "0") == {
        "job": "j", "version": "v2", "standby": False, "recount": False, "probation_s": 0,
    }  # fmt: skip


def test_a_command_may_write_a_field_its_own_way():
    assert given("rollback_job", "j", "--to", "s", snapshot="--to SNAPSHOT") == {"job": "j", "snapshot": "s"}
    assert given("snapshot_job", "j", "s", snapshot="NAME") == {"job": "j", "snapshot": "s"}
    assert given("snapshot_job", "j", snapshot="NAME") == {"job": "j"}
