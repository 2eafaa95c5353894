"""The stack in containers: what runs in each (``container``), and starting it from the host (``host``).

May import the local stack and the core; what runs in a container is the same as without one.
"""
