"""What a driver says that it takes of its node."""

from __future__ import annotations

import psutil

from streamops_runtime import usage


def test_processor_and_memory_are_those_of_this_process_and_of_the_one_that_started_it() -> None:
    found = usage.taken()
    both = [psutil.Process(), psutil.Process().parent()]
    memory = sum(process.memory_info().rss for process in both if process)
    assert 0.5 * memory < found["memory_bytes"] < 2 * memory
    spent = sum(sum(process.cpu_times()[:2]) for process in both if process)
    assert 0 < found["cpu_s"] <= spent + 0.1
    while usage.taken()["cpu_s"] < found["cpu_s"] + 0.05:  # asking takes some
        pass
