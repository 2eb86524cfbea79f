"""The head of a data cache is asked where its rows are."""

import subprocess
import sys
import time

import pytest
from flight import OUT_OF_RANGE, UNAVAILABLE, flight_head, refusing_head, silent_head

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers.cache_probe import probe

pytestmark = pytest.mark.lab

WITHOUT_PYARROW = """
import sys, time
sys.modules["pyarrow"] = None
from trainer_agent.initializers.cache_probe import probe
probe(("127.0.0.1", int(sys.argv[1])), deadline=time.monotonic() + 5)
"""


def ask(port, *, seconds=20.0, call_s=5.0):
    probe(("127.0.0.1", port), deadline=time.monotonic() + seconds, call_s=call_s)


def test_a_head_with_rows(capsys):
    with flight_head(rows=10, workers=2) as port:
        ask(port)

    assert f"the cache at 127.0.0.1:{port} serves its table from 2 workers" in capsys.readouterr().out


def test_a_head_without_endpoints_is_empty():
    with flight_head(rows=0) as port, pytest.raises(FatalError) as caught:
        ask(port)

    assert caught.value.code == "cache-empty"
    assert caught.value.message == f"The cache at 127.0.0.1:{port} has no row of its table: no worker holds any"


def test_out_of_range_is_empty_and_the_head_is_quoted():
    with refusing_head(OUT_OF_RANGE) as port, pytest.raises(FatalError) as caught:
        ask(port)

    assert caught.value.code == "cache-empty"
    assert "Invalid partition range" in caught.value.message


def test_a_head_that_is_not_there_yet_is_asked_again():
    """Two connections are refused by gRPC, the third says that the table is empty."""
    with refusing_head(UNAVAILABLE, UNAVAILABLE, OUT_OF_RANGE) as port, pytest.raises(FatalError) as caught:
        ask(port)

    assert caught.value.code == "cache-empty"


@pytest.mark.parametrize("call_s", [0.3, 60.0], ids=["call", "deadline"])
def test_a_silent_head_is_left_at_the_deadline(call_s):
    started = time.monotonic()
    with silent_head() as port, pytest.raises(RetryError) as caught:
        ask(port, seconds=1.5, call_s=call_s)

    assert caught.value.code == "cache-not-serving"
    assert time.monotonic() - started < 20


def test_without_pyarrow_a_connection_must_do_and_the_log_says_so():
    with silent_head() as port:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_PYARROW, str(port)], capture_output=True, text=True, check=True, timeout=30
        )

    assert f"the cache at 127.0.0.1:{port} accepts connections; without pyarrow no row was asked for" in done.stdout


def test_without_pyarrow_a_refused_connection_is_an_error():
    with silent_head() as port:
        pass
    code = WITHOUT_PYARROW.replace("+ 5", "+ 0.5")
    done = subprocess.run(
        [sys.executable, "-c", code, str(port)], capture_output=True, text=True, check=False, timeout=30
    )

    assert done.returncode == 1
    assert "Connection refused" in done.stderr.splitlines()[-1]
