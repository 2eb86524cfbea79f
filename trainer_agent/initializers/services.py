"""Set services up while files are being fetched."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from trainer_agent.errors import RetryError
from trainer_agent.initializers import CLEANUP_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_agent.initializers import Service

LOOK_S = 0.1
LATE_S = CLEANUP_S + 2.0


class Setup:
    """
    The setting up of services, each in a thread.

    Args:
        deadline: on the monotonic clock.
    """

    def __init__(self, services: Sequence[Service], *, deadline: float) -> None:
        self.deadline = deadline
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._serve, args=[s], name=s.uri, daemon=True) for s in services]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise what a service has raised."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """
        Return once all serve.

        One that is not ready in time says so itself, once it has removed what it had made.

        Raises:
            AgentError: one cannot, or is not ready in time.
        """
        for thread in self._threads:
            while thread.is_alive():
                thread.join(LOOK_S)  # short, so that a signal is seen
                self.check()
                if time.monotonic() > self.deadline + LATE_S:
                    hint = "raise --timeout, or look at its pods"
                    raise RetryError("service-timeout", f"{thread.name} does not serve in time", hint=hint)
        self.check()

    def _serve(self, service: Service) -> None:
        try:
            service.serve(deadline=self.deadline)
        except BaseException as error:  # noqa: BLE001  # whoever checks raises it
            self._error = error
