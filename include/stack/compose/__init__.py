"""The stack in containers: what runs in each (``container``), and starting it from the host (``host``)."""
