"""Triggers: the waiting of an operation, without a worker.

May import the hooks and the core, and no operator: Airflow's triggerer loads them alone.
"""
