"""The core of StreamOps: decisions about jobs, snapshots and operations, without Airflow and without PySpark.

Each package is a room, and imports only rooms below it. From below: ``model``, ``settings``, ``store``, ``spark``,
``versions`` and ``clients``, ``snapshots`` and ``cluster`` and ``recount``, ``operations``, ``upkeep``, ``wiring``,
``cli``. docs/architecture.md has the plan.
"""

__version__ = "0.1.0"
