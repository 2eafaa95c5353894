"""Operations: what was asked for, the steps of each runbook, how each acts and is taken back, and the receipt.

May import every room but ``upkeep`` and ``cli``. Only an operation changes what a job or the cluster should be.

Entry points: ``operation.Request`` and ``operation.plan``, ``engine.Engine``, ``ports.Ports`` (what an engine acts
through), ``follow.Runbooks`` (runs one through Airflow), ``receipts``.
"""
