"""Work side by side, by as many threads as there may be."""

import threading

import pytest

from trainer_agent.initializers.threads import on_each
from trainer_agent.isolation import isolated

TOO_MUCH = 1 << 46  # bytes of stack, for which no kernel has the addresses


@pytest.mark.parametrize("threads, items", [(1, 5), (4, 9), (8, 1), (8, 0)])
def test_each_is_done_once(threads, items):
    """However few there are."""
    done = []
    on_each(done.append, range(items), threads=threads)

    assert list(range(items)) == sorted(done)


def test_they_work_at_the_same_time():
    """Each waits for all others."""
    met = threading.Barrier(4)
    on_each(lambda _: met.wait(timeout=20), range(4), threads=4)

    assert not met.broken


def test_without_another_thread_this_one_does_all():
    """As at the limit of processes of a container."""

    def alone():
        threading.stack_size(TOO_MUCH)
        with pytest.raises(RuntimeError, match="start new thread"):
            threading.Thread(target=print).start()
        done = []
        on_each(done.append, range(5), threads=4)
        return done

    assert [0, 1, 2, 3, 4] == isolated(alone, timeout_s=20)


def test_what_fails_is_raised_after_all_have_been_called():
    """The disk may have more to tell of others."""
    called = []

    def fail(item):
        called.append(item)
        if item % 2:
            raise OSError(item, "broken")

    with pytest.raises(OSError, match="broken"):
        on_each(fail, range(6), threads=2)

    assert [0, 1, 2, 3, 4, 5] == sorted(called)
