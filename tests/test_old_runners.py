"""Versions that were published before their runner learned something: it is not asked of them."""

from __future__ import annotations

import pytest

from fakes.rig import JOB, Rig
from streamops.model.errors import RefusedError
from streamops.store import jobs


def test_brokers_and_levels_that_a_runner_does_not_know_are_refused_and_an_inherited_trace_is_a_debug(rig: Rig) -> None:
    rig.publish("old", ("a",), can=())
    rig.topic.made["events@b:1"] = (1, {})
    elsewhere = ({"topics": {"events": "events@b:1"}}, "is to read events@b:1, and its runner is too old")
    for asked, says in (elsewhere, ({"logging": {"x": "TRACE"}}, "is too old to know TRACE; use DEBUG")):
        with pytest.raises(RefusedError, match=says):
            rig.run("deploy_job", version="old", **asked)
    rig.run("deploy_job", version="v1", logging={"x": "TRACE", "y": "ERROR"})
    assert jobs.deployment(rig.store, JOB, 1).logging == {"x": "TRACE", "y": "ERROR"}
    rig.commits_more()
    with pytest.raises(RefusedError, match="its runner is too old"):
        rig.run("upgrade_job", version="old", snapshot="s", start_at={"events": "latest"}, **elsewhere[0])
    rig.run("upgrade_job", version="old", snapshot="s", recount=False)
    assert jobs.deployment(rig.store, JOB, 2).logging == {"x": "DEBUG", "y": "ERROR"}
    with pytest.raises(RefusedError, match="The runner of sums old is too old to be told while it runs"):
        rig.run("set_log_levels", logging={"x": "INFO"})
