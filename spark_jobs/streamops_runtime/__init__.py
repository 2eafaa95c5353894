"""What runs on the cluster: the runner with its sources, sinks and gate.

May import PySpark, and of the core what decides nothing about the cluster or an operation: up to ``snapshots``.

Entry points: ``bootstrap`` (the one file on a node), ``runner.run`` (a driver), ``work.Work`` (its queries),
``warmup``, ``shadow``, ``validate`` (what publish asks local Spark).
"""
