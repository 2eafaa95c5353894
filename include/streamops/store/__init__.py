"""The object store: the client, every path in the bucket, and what is read and written there under which rule.

May import ``model`` and the settings.

Entry points: ``object_store.ObjectStore``, ``keys``, ``documents.read`` and ``documents.write``, ``jobs`` (the job
record and what belongs to it), ``leases`` (the right to write results), ``locks`` (one operation at a time).
"""
