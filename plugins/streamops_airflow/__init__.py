"""The Airflow side of StreamOps: connections in, calls to the core, ids into XCom. Decisions stay in the core.

May import Airflow and the core, and neither PySpark nor the demos nor the stack.

Entry points: ``dags.runbook_dag``, the operators of ``operators.runbooks``, the hooks, ``assets``, and ``provider`` and
``plugin``, by which Airflow finds them.
"""
