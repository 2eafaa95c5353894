"""What Airflow's providers tell of themselves: the type of connection that names an installation, and its form."""

from typing import Any

_SERVICES = {
    "s3": "Object store",
    "spark": "Spark master",
    "kafka": "Kafka",
    "influx": "InfluxDB",
    "snapshots": "Signing keys of snapshots",
    "s3_retention": "Object store, identity that may delete",
}


def info() -> dict[str, Any]:
    """The entry point ``apache_airflow_provider``. The hook itself is imported only when it is used."""
    fields = {
        name: {
            "label": label,
            "description": f"Id of the connection; all are empty for the first installation (streamops_{name}).",
            "schema": {"type": ["string", "null"]},
        }
        for name, label in _SERVICES.items()
    }
    return {
        "package-name": "streamops",
        "name": "StreamOps",
        "description": "Runbooks for stateful streaming jobs.",
        "connection-types": [
            {
                "connection-type": "streamops",
                "hook-class-name": "streamops_airflow.hooks.streamops.StreamOpsHook",
                "hook-name": "StreamOps",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                },
                "conn-fields": fields,
            }
        ],
        "hooks": [
            {
                "integration-name": "StreamOps",
                "python-modules": ["streamops_airflow.hooks.streamops", "streamops_airflow.hooks.snapshots"],
            }
        ],
        "operators": [
            {"integration-name": "StreamOps", "python-modules": ["streamops_airflow.operators.runbooks"]},
        ],
    }
