"""The runbooks as Airflow reads them."""

import importlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from configparser import ConfigParser
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from stack import configure
from stack.layout import Layout
from stack.private import prepare_env
from streamops.operations.requests import ClusterRequest
from streamops.operations.runbooks import RUNBOOKS
from streamops.settings import REPOSITORY
from streamops_airflow import forms
from streamops_airflow.runs import INSTALLATION

JOB_RUNBOOKS = tuple(name for name, found in RUNBOOKS.items() if not issubclass(found.request, ClusterRequest))
DESTRUCTIVE = ("from_scratch", "cancel", "fork", "without_missing")
SCHEDULED = ("apply_retention", "verify_snapshots")  # by a clock
WATCHED = ("reconcile", "scheduled_snapshots")  # by an event: there is something to do
BY_THEMSELVES = (*SCHEDULED, *WATCHED)


@pytest.fixture(scope="module")
def dags():
    def refuse(*_):
        raise AssertionError("parsing a runbook opened a connection")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        bag = DagBag(str(REPOSITORY / "dags"))
    assert not bag.import_errors
    return bag.dags


def test_there_is_one_runbook_per_kind_of_operation(dags):
    assert set(dags) == {*RUNBOOKS, *BY_THEMSELVES}


@pytest.mark.parametrize("name", WATCHED)
def test_what_has_to_be_done_seldom_runs_only_when_its_watcher_has_found_something(dags, name):
    dag = dags[name]
    timetable = DagSerialization.to_dict(dag)["dag"]["timetable"]
    assert timetable["__type"] == "airflow.timetables.simple.AssetTriggeredTimetable"  # by no clock
    (asset,) = timetable["__var"]["asset_condition"]["objects"]
    (watcher,) = asset["watchers"]
    assert watcher["trigger"]["classpath"].startswith("streamops_airflow.triggers.watching.")
    assert watcher["trigger"]["kwargs"] == {"dag_id": name, "streamops_conn_id": "streamops"}


def test_every_task_has_a_timeout_after_which_the_teardowns_run(dags):
    tasks = {f"{name}.{task.task_id}": task for name, dag in dags.items() for task in dag.tasks}
    assert any(task.is_mapped for task in tasks.values())  # which a default of the DAG might not reach
    assert {name: task for name, task in tasks.items() if not task.execution_timeout} == {}
    assert not any(dag.dagrun_timeout for dag in dags.values())  # it would skip them


def test_healing_has_a_pool_of_its_own_whose_slot_no_other_task_can_take(dags, tmp_path):
    of_pools = {task.pool: name for name, dag in dags.items() for task in dag.tasks}
    assert of_pools == {"default_pool": of_pools["default_pool"], "healing": "reconcile"}
    assert {task.pool for task in dags["reconcile"].tasks} == {"healing"}
    layout = Layout.find(tmp_path)
    configure.airflow(layout, prepare_env(layout, tmp_path / "spark"))
    slots = {name: pool["slots"] for name, pool in json.loads((layout.airflow / "pools.json").read_text()).items()}
    assert set(slots) == set(of_pools)
    assert slots["healing"] == 4  # drivers are submitted beside each other
    settings = ConfigParser()
    settings.read(layout.airflow / "airflow.cfg")
    assert settings["core"].getint("parallelism") == sum(slots.values())


def test_one_tag_finds_all_that_runs_by_itself(dags):
    found = {name for name, dag in dags.items() if "scheduled" in dag.tags}
    assert found == set(BY_THEMSELVES)
    assert not any("schedule" in dag.tags for dag in dags.values())


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_tasks_come_in_the_order_of_the_plan_and_teardowns_last(dags, runbook):
    dag = dags[runbook]
    order = [task.task_id for task in dag.topological_sort()]
    teardowns = [task.task_id for task in dag.tasks if task.is_teardown]
    again = "submit_again" if RUNBOOKS[runbook].submits_again else ""
    expected = [name for name in (RUNBOOKS[runbook].restoring, again) if name]
    assert order == [*RUNBOOKS[runbook].tasks, *expected, "release_lock", "outcome"]
    assert set(teardowns) == {*expected, "release_lock", "outcome"}
    for at, task in enumerate(dag.topological_sort()):
        # What is mapped over nothing is skipped, and what comes after it continues nevertheless.
        beyond = order[at + 1 : at + 3] if task.task_id in before_mapped(runbook) else order[at + 1 : at + 2]
        assert task.downstream_task_ids == set(beyond)
        mapped_before = at > 1 and order[at - 2] in before_mapped(runbook)
        assert (task.trigger_rule == "none_failed_min_one_success") == mapped_before


def before_mapped(runbook):
    tasks = RUNBOOKS[runbook].tasks
    mapped = {step.task for step in RUNBOOKS[runbook].steps if step.parts}
    return [task for task, following in itertools.pairwise(tasks) if following in mapped]


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_every_driver_that_a_plan_starts_is_started_by_a_spark_submit_operator(dags, runbook):
    submits = {step.task for step in RUNBOOKS[runbook].steps if step.submits}
    again = {"submit_again"} if RUNBOOKS[runbook].submits_again else set()
    assert RUNBOOKS[runbook].submits_again in {"", *RUNBOOKS[runbook].undo}
    kinds = {task.task_id: getattr(task, "operator_class", type(task)) for task in dags[runbook].tasks}
    assert {name for name, kind in kinds.items() if issubclass(kind, SparkSubmitOperator)} == submits | again
    assert all(step.submits for step in RUNBOOKS[runbook].steps if step.task in submits)  # tasks of their own
    for task in (dags[runbook].get_task(name) for name in submits):
        if task.is_mapped:  # a task for each job, one after the other
            assert task.partial_kwargs["max_active_tis_per_dagrun"] == 1


def test_what_heals_and_may_start_a_driver_is_a_spark_submit_operator_for_each(dags):
    look, heal = dags["reconcile"].get_task("look"), dags["reconcile"].get_task("heal")
    assert not isinstance(look, SparkSubmitOperator)
    assert heal.is_mapped
    assert issubclass(heal.operator_class, SparkSubmitOperator)
    assert look.downstream_task_ids == {"heal"}


@pytest.mark.parametrize(
    ("dag", "first", "each"),
    [
        ("scheduled_snapshots", "look", ("take",)),
        ("apply_retention", "look", ("apply_retention",)),
        ("verify_snapshots", "look", ("read_back", "test_restore")),
    ],
)
def test_what_looks_after_snapshots_has_a_task_for_each_job(dags, dag, first, each):
    tasks = {task.task_id: task for task in dags[dag].tasks}
    assert not tasks[first].is_mapped
    assert tasks[first].downstream_task_ids == set(each)
    assert all(tasks[name].is_mapped for name in each)


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_only_the_outcome_decides_a_run_whose_tasks_were_skipped(dags, runbook):
    deciding = [task.task_id for task in dags[runbook].tasks if task.on_failure_fail_dagrun]
    assert deciding == ["outcome"]


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_the_docstring_is_the_runbook(dags, runbook):
    dag = dags[runbook]
    for heading in ("What it does", "When to use it", "What it changes", "What can go wrong, and how to recover"):
        assert heading in dag.doc_md
    assert {"streamops", "runbook"} <= set(dag.tags)
    assert dag.owner == "streamops"


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_runbooks_start_only_when_asked_and_retry_every_task(dags, runbook):
    dag = dags[runbook]
    assert dag.is_paused_upon_creation is False
    assert not dag.catchup
    assert dag.timetable.can_be_scheduled is False
    # Other jobs need not wait, and not for a person either.
    assert dag.max_active_runs > (100 if "approval" in dag.params else 1)
    assert all(least_pauses(task) > timedelta(seconds=90) for task in dag.tasks)  # MinIO needs up to a minute


def least_pauses(task: Any) -> timedelta:
    """How long a task keeps trying at least, beside what its tries take."""
    pauses = (task.retry_delay * task.retry_exponential_backoff**tried for tried in range(task.retries))
    return sum((min(pause, task.max_retry_delay) for pause in pauses), timedelta())


@pytest.mark.parametrize("name", BY_THEMSELVES)
def test_what_runs_by_itself_runs_once_at_a_time_and_says_how_to_recover(dags, name):
    dag = dags[name]
    assert dag.timetable.can_be_scheduled
    assert (dag.max_active_runs, dag.catchup, dag.is_paused_upon_creation) == (1, False, False)
    for heading in ("What it does", "When to use it", "What it changes", "What can go wrong, and how to recover"):
        assert heading in dag.doc_md
    for param in dag.params.values():
        assert param.description
    assert (REPOSITORY / "dags" / f"{name}.py").read_text().count("\n") < 150


def test_a_snapshot_announces_itself_as_an_asset(dags):
    for dag, task in (("snapshot_job", "switch"), ("upgrade_job", "switch"), ("scheduled_snapshots", "take")):
        outlets = dags[dag].get_task(task).outlets
        assert [item.name for item in outlets] == ["streamops-snapshots"]
    from streamops_airflow import assets

    asset = assets.snapshots("my-job", "bucket")
    assert (asset.name, asset.uri) == ("s3://bucket/snapshots/my-job/manifests",) * 2


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_every_field_is_described_and_known_to_the_request(dags, runbook):
    for name, param in dags[runbook].params.items():
        assert param.description, name
        assert param.schema["title"], name
    assert set(dags[runbook].params) - {INSTALLATION} <= set(RUNBOOKS[runbook].request.model_fields)
    assert dags[runbook].params.get_param(INSTALLATION).value == "streamops"
    given = (task.partial_kwargs if task.is_mapped else vars(task) for task in dags[runbook].tasks)
    assert {found["streamops_conn_id"] for found in given} == {"{{ params.streamops_conn_id }}"}


def test_the_form_that_destroys_says_so(dags):
    assert "everything that belongs to it" in dags["delete_job"].params.get_param("job").description


def test_what_every_upgrade_needs_stands_first_in_its_form(dags):
    names = list(dags["upgrade_job"].params)
    assert names[:2] == ["job", "version"]
    assert names.index("snapshot") < names.index("healthy_timeout_s") < names.index("params")


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_nothing_destructive_and_no_job_is_preselected(dags, runbook):
    params = dags[runbook].params
    assert runbook not in JOB_RUNBOOKS or not params.get_param("job").has_value
    for name in DESTRUCTIVE:
        if name in params:
            assert params.get_param(name).value is False


@pytest.mark.parametrize("runbook", JOB_RUNBOOKS)
@pytest.mark.parametrize("job", ["", "A", "a b", "../a", "-a", "a" * 64, None, 3])
def test_a_bad_job_name_is_refused_by_the_form(dags, runbook, job):
    with pytest.raises(ParamValidationError):
        dags[runbook].params.get_param("job").resolve(value=job)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a" * 129, "a b"])
def test_a_bad_snapshot_name_is_refused_by_the_form(dags, name):
    for runbook in ("snapshot_job", "upgrade_job"):
        with pytest.raises(ParamValidationError):
            dags[runbook].params.get_param("snapshot").resolve(value=name)


@pytest.mark.parametrize(
    ("field", "value"),
    [("size", 0), ("size", 1001), ("size", "3"), ("change", "x"), ("nodes", ["A b"]), ("nodes", "a")],
)
def test_a_bad_size_or_node_is_refused_by_the_form(dags, field, value):
    with pytest.raises(ParamValidationError):
        dags["scale_cluster"].params.get_param(field).resolve(value=value)


def test_good_names_pass_the_forms(dags):
    assert dags["upgrade_job"].params.get_param("job").resolve(value="trade-analyser") == "trade-analyser"
    assert dags["upgrade_job"].params.get_param("snapshot").resolve(value="SavePoint1") == "SavePoint1"
    assert dags["deploy_job"].params.get_param("from_snapshot").resolve(value="a/S1") == "a/S1"
    assert dags["scale_cluster"].params.get_param("change").resolve(value=-1) == -1
    assert dags["scale_cluster"].params.get_param("nodes").resolve(value=["node-3"]) == ["node-3"]


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_every_waiting_step_has_a_task_that_defers(dags, runbook):
    for step in RUNBOOKS[runbook].steps:
        if step.waits:
            assert hasattr(dags[runbook].get_task(step.task), "wait")


def test_airflow_finds_the_plugin_and_the_type_of_connection_once_and_by_entry_points(tmp_path):
    code = """
from airflow.plugins_manager import _get_plugins
from airflow.providers_manager import ProvidersManager
plugins, wrong = _get_plugins()
print([plugin.name for plugin in plugins if "streamops" in str(plugin.source)], wrong)
hook = ProvidersManager().hooks["streamops"]
print(hook.hook_class_name, hook.connection_id_attribute_name, hook.hook_name)
"""
    environment = os.environ | {"AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins")}  # an Airflow that has it
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "['streamops'] {}" in done.stdout.splitlines()
    assert "streamops_airflow.hooks.streamops.StreamOpsHook streamops_conn_id StreamOps" in done.stdout.splitlines()


LOAD_PLUGINS = """
import json, sys
from airflow.plugins_manager import ensure_plugins_loaded
ensure_plugins_loaded()
found = [name for name in sys.modules if name in sys.argv[2:]]
print(json.dumps([name for name in found if str(sys.modules[name].__file__).startswith(sys.argv[1])]))
"""


def loaded_by_stem(plugins: Path) -> list[str]:
    """The package's modules that Airflow imports a second time, under their file's name."""
    package = plugins / "streamops_airflow"
    stems = [path.stem for path in package.rglob("*.py") if path.stem != "__init__"]
    environment = os.environ | {"AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins)}
    command = [sys.executable, "-c", LOAD_PLUGINS, str(package), *stems]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return json.loads(output.strip().splitlines()[-1])


@pytest.mark.full
def test_the_ignore_file_keeps_airflow_from_importing_the_package_twice(tmp_path):
    assert loaded_by_stem(REPOSITORY / "plugins") == []
    shutil.copytree(REPOSITORY / "plugins" / "streamops_airflow", tmp_path / "streamops_airflow")
    assert "forms" in loaded_by_stem(tmp_path)  # without the file it would


def test_what_only_a_runbook_asks_stands_before_what_others_ask_as_well() -> None:
    asked = list(forms.of(RUNBOOKS["upgrade_job"].request))
    assert asked[:2] == ["job", "version"]
    for own in ("snapshot", "strategy", "probation_s"):
        assert all(asked.index(own) < asked.index(shared) for shared in ("library", "cores", "code_of"))


def test_a_runbook_file_is_wiring_only():
    for runbook in RUNBOOKS:
        text = (REPOSITORY / "dags" / f"{runbook}.py").read_text()
        assert text.count("\n") < 150
        assert not re.search(r"^(def|class|if|for|while) ", text, re.MULTILINE)


def test_triggers_are_importable_by_the_name_they_are_stored_under():
    from streamops_airflow.triggers.waiting import StepTrigger

    path, kept = StepTrigger("a", "op", "healthy", deadline=1.5, streamops_conn_id="second").serialize()
    assert kept["streamops_conn_id"] == "second"
    module, _, name = path.rpartition(".")
    again = getattr(importlib.import_module(module), name)(**kept)
    assert again.serialize() == (path, kept)
