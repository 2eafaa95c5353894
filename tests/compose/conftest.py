"""These tests need a container engine, so they run only when asked for: 'make test-compose'."""

import os

ASKED = "STREAMOPS_TEST_COMPOSE"
collect_ignore_glob = [] if os.environ.get(ASKED) else ["test_*.py"]
