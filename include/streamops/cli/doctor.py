"""``doctor``: what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import typer

from streamops.cli import console
from streamops.clients.airflow import Airflow
from streamops.model.errors import NotFoundError, StreamOpsError
from streamops.operations.runbooks import RUNBOOKS
from streamops.settings import Settings
from streamops.wiring import questions


def doctor(json: console.Json = False) -> None:
    """Say what is missing or does not answer."""
    found = [*machine(), *servers()]
    if json:
        console.show_json([dict(zip(("what", "ok", "detail"), item, strict=True)) for item in found])
    else:
        for what, ok, detail in found:
            console.out.print(f"[{'green' if ok else 'bold red'}]{'ok     ' if ok else 'MISSING'}[/] ", end="")
            console.say(f"{what:14} {detail}")
    if not all(ok for _, ok, _ in found):
        raise typer.Exit(1)


def machine() -> Iterator[tuple[str, bool, str]]:
    """What a stack needs of this machine; nothing where the installation's stack is elsewhere."""
    from stack.doctor import doctor as looked_at

    with suppress(NotFoundError):
        if not Settings.load().spark_home:
            return
    yield from ((item.what, item.ok, item.detail) for item in looked_at())


def servers() -> Iterator[tuple[str, bool, str]]:
    """Ask each server of the installation one small question."""
    try:
        settings = Settings.load()
    except NotFoundError as error:
        yield "Installation", False, str(error)
        return
    addresses = {
        "Object store": settings.s3_endpoint,
        "Kafka": settings.kafka_bootstrap_servers,
        "InfluxDB": settings.influx_url,
        "Spark master": settings.spark_ui,
        "Airflow": settings.airflow_url,
    }
    asked = questions(settings) | {"Airflow": partial(_airflow, settings)}
    for what, ask in asked.items():
        try:
            ask()
            yield what, True, addresses[what]
        except StreamOpsError as error:
            yield what, False, str(error)


def _airflow(settings: Settings) -> None:
    with Airflow(settings) as airflow:
        missing = [name for name in RUNBOOKS if not airflow.ready(name)]
    if missing:
        raise NotFoundError(f"Airflow does not offer {', '.join(missing)} (yet): paused, or with import errors.")
