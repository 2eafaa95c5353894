"""Triggers: the waiting of an operation, without a worker."""
