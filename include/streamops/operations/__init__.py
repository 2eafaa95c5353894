"""Operations: what was asked for, the steps of each runbook, how each acts and is undone, and the receipt.

May import every room but ``upkeep`` and ``cli``. Only an operation changes what a job or the cluster should be.

Entry points: ``runbooks.find`` and ``runbooks.of``, ``operation.Operation``, ``engine.Engine``,
``ports.Ports`` (what an engine acts through), ``follow.Runbooks`` (runs one through Airflow), ``receipts``.
"""

from streamops.operations import runbooks as runbooks  # reading an operation needs the models of all requests
