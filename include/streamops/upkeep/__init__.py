"""What runs by itself: jobs are put right, snapshots are taken by schedule and restored as a test, old things go.

May import ``operations`` and what lies below.

Entry points: ``reconciler.Reconciler``, ``scheduled``, ``restore_tests``, ``task_logs``; ``watching``
says when a look is worth a run.
"""
