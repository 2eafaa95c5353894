"""The recount: a job's results are computed again from the ledger, with code of its own, and compared.

May import ``clients``, ``versions``, ``spark`` and what lies below, and neither ``snapshots`` nor ``cluster``.

Entry points: ``recounting.recount_job``, ``report.Report``; ``beside`` compares two versions with each other instead.
"""
