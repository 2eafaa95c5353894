"""The core of StreamOps: decisions about jobs, snapshots and operations, without Airflow and without PySpark."""

__version__ = "0.1.0"
