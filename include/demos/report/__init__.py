"""The demo's report: one self-contained page with pictures, drawn from the report's JSON."""
