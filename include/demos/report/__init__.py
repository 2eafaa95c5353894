"""The demo's report: one self-contained page with pictures, drawn from the report's JSON.

May import the core and what the demos measure.

Entry points: ``upgrade``, ``elasticity`` and ``fleet``, a report each.
"""
