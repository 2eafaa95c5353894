"""What things are: names, definitions, stored records, a snapshot's manifest, every error.

Frozen models and pure rules. No I/O; the one clock is ``records.now``. Imports no other room.

Entry points: ``definitions.Definition`` and ``definitions.load``, ``records``, ``manifest.Manifest``, ``errors``.
"""
