"""Operators: one Airflow task for each task of an operation's plan.

May import the hooks, the triggers and the core.

Entry points: ``runbooks`` (for other people's DAGs), ``steps`` and ``driver_submit`` (of the runbooks' own).
"""
