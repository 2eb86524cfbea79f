"""How many streams are open at once."""

import pytest

from trainer_agent.initializers.streams import Streams

GB = 10**9


@pytest.mark.parametrize(
    "first_byte_s,small,most,expected",
    [
        (0.001, False, 64, 4),
        (0.001, True, 64, 4),
        (0.030, False, 64, 32),
        (0.030, True, 64, 64),
        (0.030, True, 256, 128),
        (0.030, True, 20, 20),
        (0.001, False, 3, 3),
    ],
)
def test_the_first_bytes_say_how_far_the_server_is(first_byte_s, small, most, expected):
    """A few for a near one, more for a far one, never more than allowed."""
    streams = Streams(most, small=small)
    for _ in range(8):
        streams.first_byte(first_byte_s)

    assert streams.allowed == expected


def test_one_fast_answer_is_enough_to_be_near():
    """Later answers may be slow because the server is busy with us."""
    streams = Streams(64, small=False)
    for seconds in (0.5, 0.5, 0.002, *[0.5] * 20):
        streams.first_byte(seconds)

    assert streams.allowed == 4


@pytest.mark.parametrize(
    "first_byte_s,most,expected",
    [(0.0004, 64, 4), (0.0004, 3, 3), (0.004, 64, 16), (0.004, 8, 8), (0.030, 256, 128)],
)
def test_tiny_files_need_more_streams_as_soon_as_the_server_is_not_next_door(first_byte_s, most, expected):
    """A stream waits longer for the first byte of a tiny file than it takes for all others."""
    streams = Streams(most, small=True, tiny=True)
    for _ in range(20):
        streams.first_byte(first_byte_s)

    assert streams.allowed == expected


def test_connecting_does_not_make_a_server_next_door_a_far_one():
    """The first answer on each connection waits for the connection, too."""
    streams = Streams(64, small=True, tiny=True)
    for seconds in (*[0.005] * 4, *[0.0004] * 20):
        streams.first_byte(seconds)

    assert streams.allowed == 4


@pytest.mark.parametrize(
    "busy,cpus,tiny,most,expected",
    [
        (0.3, 2.0, False, 64, 16),  # a server that caps each connection
        (0.9, 2.0, False, 64, 4),
        (1.2, 2.0, False, 64, 2),
        (1.2, 16.0, False, 64, 16),  # the others may work, too
        (0.3, 2.0, False, 8, 8),
        (0.6, 16.0, True, 64, 2),  # the interpreter is busy, whatever there is beside it
        (0.1, 16.0, True, 64, 16),
        (0.1, 0.5, True, 64, 16),
        (0.3, 0.5, True, 64, 2),
        (1.2, 2.0, False, 3, 3),
    ],
)
def test_streams_are_as_many_as_keep_the_processor_busy(busy, cpus, tiny, most, expected):
    """Others would only take it from each other."""
    streams = Streams(most, small=True, tiny=tiny, cpus=cpus)
    for tick in range(10):
        streams.tick(tick / 10, tick, tick / 10 * busy)

    assert streams.allowed == expected


def test_an_instant_says_nothing_about_the_processor():
    """Ticks also come whenever a file has ended."""
    streams = Streams(64, small=False, cpus=2.0)
    for tick in range(10):
        streams.tick(tick / 10, tick, tick / 10)
        streams.tick(tick / 10 + 0.001, tick, tick / 10)

    assert streams.allowed == 4


def test_a_busy_server_is_not_asked_for_more_by_an_idle_processor():
    """It asked for fewer; nothing is tried for a while."""
    streams = Streams(64, small=False, cpus=2.0)
    streams.slow_down(0.0)
    for tick in range(100):
        streams.tick(tick / 10, tick, 0.0)

    assert streams.allowed == 2


def drive(streams, rate_of, *, seconds):
    """
    Tick ten times a second on a server that moves `rate_of(streams)` bytes a second; return the levels seen.

    Each GB takes a second of a processor.
    """
    now, moved, seen = 0.0, 0.0, [streams.allowed]
    for _ in range(int(seconds * 10)):
        now += 0.1
        moved += rate_of(streams.allowed) / 10
        streams.tick(now, int(moved), moved / GB)
        if streams.allowed != seen[-1]:
            seen.append(streams.allowed)
    return seen


def test_streams_grow_where_each_is_limited():
    """80 MB/s a connection without latency: more streams bring more, until the wire is full."""
    streams = Streams(64, small=False, cpus=2.0)

    assert drive(streams, lambda n: min(n * 80e6, 2.5 * GB), seconds=15) == [4, 16, 24, 36, 54, 36]


def test_streams_go_back_where_more_bring_nothing():
    """A saturated server is probed once, then left alone for a while."""
    assert drive(Streams(64, small=False), lambda n: 0.4 * GB, seconds=15) == [4, 6, 4]


def test_a_busy_server_gets_half():
    """Once a second at most, and nothing is tried for a while."""
    streams = Streams(64, small=False)
    for _ in range(8):
        streams.first_byte(0.030)
    for now in (1.0, 1.1, 1.2, 2.5):
        streams.slow_down(now)

    assert streams.allowed == 8
    assert drive(streams, lambda n: n * 1e6, seconds=20) == [8]


def test_one_stream_is_left():
    """However often the server complains."""
    streams = Streams(64, small=False)
    for second in range(20):
        streams.slow_down(second * 2.0)

    assert streams.allowed == 1
