"""One module for each server that we talk to beside the object store and Spark: Kafka, InfluxDB, supervisord, Airflow.

May import ``store`` and what lies below.

Entry points: ``kafka.Ledger``, ``influx.Points``, ``supervisor.Supervisor``, ``airflow.Airflow``.
"""
