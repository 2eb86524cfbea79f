"""Does the head of a data cache serve rows? That its pods are ready does not say so: it drops its own errors."""

from __future__ import annotations

import math
import socket
import time

from trainer_agent.errors import FatalError, RetryError
from trainer_agent.initializers.retry import pause_s
from trainer_agent.isolation import IsolatedError, isolated
from trainer_agent.log import get_logger

CALL_S = 10.0
# On a cold disk pyarrow alone takes seconds to import.
IMPORT_S = 20.0
PROGRESS_S = 10.0
SERVED, CONNECTED, REFUSED, AGAIN = "served", "connected", "refused", "again"


def probe(endpoint: tuple[str, int], *, deadline: float, call_s: float = CALL_S) -> None:
    """
    Return once the head says where the rows of the whole table are, or without pyarrow accepts a connection.

    Raises:
        FatalError: it says that there are none.
        RetryError: it does not answer before `deadline` on the monotonic clock.
    """
    head = f"{endpoint[0]}:{endpoint[1]}"
    shown = -math.inf
    attempt = 0
    while True:
        outcome, said = _asked(endpoint, deadline=deadline, call_s=call_s)
        if outcome == SERVED:
            get_logger().info(f"the cache at {head} serves its table from {said} workers")
            return
        if outcome == CONNECTED:
            get_logger().warning(f"the cache at {head} accepts connections; without pyarrow no row was asked for")
            return
        if outcome == REFUSED:
            raise FatalError(
                "cache-empty",
                f"The cache at {head} has no row of its table: {said}",
                hint="look at STORAGE_URI=cache://schema/table and METADATA_LOC, then at the head's log",
            )
        attempt += 1
        pause = pause_s(attempt, None)
        if time.monotonic() + pause >= deadline:
            raise RetryError(
                "cache-not-serving",
                f"The cache at {head} is available but does not say where its rows are: {said}",
                hint="look at the head's log: kubectl logs <job>-cache-0",
            )
        if time.monotonic() - shown >= PROGRESS_S:
            shown = time.monotonic()
            get_logger().info(f"waiting for the cache at {head} to answer", said=said, attempt=attempt)
        time.sleep(pause)


def _asked(endpoint: tuple[str, int], *, deadline: float, call_s: float) -> tuple[str, str]:
    """Ask in a child: gRPC has threads of its own, and a name server may hang."""
    left = max(0.5, deadline - time.monotonic())
    try:
        outcome: tuple[str, str] = isolated(
            lambda: _ask(endpoint, timeout_s=min(call_s, left)), timeout_s=min(call_s + IMPORT_S, left)
        )
    except IsolatedError as error:
        return AGAIN, str(error)
    return outcome


def _ask(endpoint: tuple[str, int], *, timeout_s: float) -> tuple[str, str]:
    """Return what became of one question, and what the head said or how many workers have the rows."""
    try:
        from pyarrow import ArrowException, ArrowInvalid, flight
    except ImportError:
        return _connect(endpoint, timeout_s=timeout_s)
    try:
        client = flight.connect(f"grpc://{endpoint[0]}:{endpoint[1]}")
        whole = flight.FlightDescriptor.for_path("0", "1")  # part 0 of 1
        found = client.get_flight_info(whole, flight.FlightCallOptions(timeout=timeout_s)).endpoints
    except ArrowInvalid as error:  # among them OUT_OF_RANGE, with which the head says that a part has no rows
        return REFUSED, str(error)
    except (ArrowException, OSError) as error:
        return AGAIN, str(error)
    return (SERVED, str(len(found))) if found else (REFUSED, "no worker holds any")


def _connect(endpoint: tuple[str, int], *, timeout_s: float) -> tuple[str, str]:
    try:
        socket.create_connection((endpoint[0].strip("[]"), endpoint[1]), timeout=timeout_s).close()
    except OSError as error:
        return AGAIN, str(error)
    return CONNECTED, ""
