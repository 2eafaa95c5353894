"""When points can be read: lateness and pauses, from moments given by hand."""

from demos.freshness import Seen, Watcher, latenesses, longest_pause, spread


def seen(*pairs: tuple[int, int]) -> list[Seen]:
    return [Seen("avg_1s", end * 1000, at * 1000) for end, at in pairs]


def test_windows_that_appear_together_each_have_their_own_lateness():
    assert latenesses(seen((10, 12), (13, 15))) == [(11_000, 4.0), (12_000, 3.0), (13_000, 2.0)]


def test_the_first_point_has_no_lateness_because_it_may_have_been_there_before():
    assert latenesses(seen((10, 12))) == []


def test_longest_pause_counts_only_what_touches_the_span():
    moments = seen((1, 0), (2, 9), (3, 10), (4, 15), (5, 16))
    assert longest_pause(moments, 11_000, 16_000) == 5.0
    assert longest_pause(moments, 0, 16_000) == 9.0
    assert longest_pause(moments[:1], 0, 1) is None


def test_spread_takes_nearest_ranks():
    found = spread(float(value) for value in range(1, 101))
    assert found
    assert (found.count, found.p50, found.p99, found.worst) == (100, 50.0, 99.0, 100.0)
    assert spread([]) is None


def test_watcher_notes_only_newer_points_and_survives_a_server_that_is_away():
    answers = [{"avg_1s": 1000}, {"avg_1s": 1000}, ConnectionError(), {"avg_1s": 3000, "vol_1s": 2000}]
    asked = []

    def newest(since):
        asked.append(since)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watcher = Watcher(newest, clock=lambda: 9.0 + len(asked))
    for _ in range(4):
        watcher.look()
    assert [(point.measurement, point.window_end_ms, point.seen_ms) for point in watcher.seen()] == [
        ("avg_1s", 1000, 10_000),
        ("avg_1s", 3000, 13_000),
        ("vol_1s", 2000, 13_000),
    ]
    assert watcher.misses == 1
    assert asked == [0, 1000, 1000, 1000]  # never again what was seen
