"""How far a fetch is: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from trainer_agent.log import get_logger, structlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.console import Console

EVERY_S = 10.0


class Progress:
    """
    Report bytes, files, rate and time left.

    Args:
        size: bytes to come.
        files: files to come.
        every_s: seconds between lines where there is no bar.
        tell: takes bytes, files and seconds left at every update.
    """

    def __init__(
        self, *, size: int, files: int, every_s: float = EVERY_S, tell: Callable[..., None] = lambda **_: None
    ) -> None:
        self.size = size
        self.files = files
        self.every_s = every_s
        self.tell = tell
        self._began = self._said_at = time.monotonic()
        self._said = 0
        self._bar: Any = None
        self._log_to: Any = None

    def __enter__(self) -> Self:
        self._bar = _bar(self.size) if sys.stderr.isatty() else None
        if self._bar is not None:
            self._log_to = structlog.get_config()["logger_factory"]
            self._bar.start()
            structlog.configure(logger_factory=structlog.WriteLoggerFactory(_Above(self._bar.console)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            structlog.configure(logger_factory=self._log_to)

    def update(self, *, moved: int, files: int, streams: int) -> None:
        """Show that `moved` bytes and `files` files have come, over `streams` connections."""
        self._tell(moved, files)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=moved, files=f"{files:,}/{self.files:,}")
            return
        now = time.monotonic()
        if now - self._said_at < self.every_s:
            return
        rate = (moved - self._said) / (now - self._said_at)
        self._said_at, self._said = now, moved
        left = max(0, self.size - moved)
        get_logger().info(
            "fetching",
            bytes=moved,
            of=self.size,
            files=files,
            of_files=self.files,
            mb_per_s=round(rate / 1e6, 1),
            left_s=round(left / rate) if rate else None,
            streams=streams,
        )

    def _tell(self, moved: int, files: int) -> None:
        left = max(0, self.size - moved)
        facts = {"init_bytes": self.size, "init_bytes_done": moved, "init_files": self.files, "init_files_done": files}
        if moved:
            facts["init_seconds_left"] = round(left * (time.monotonic() - self._began) / moved)
        self.tell(**facts)


class _Above:
    """Lets log lines appear above the bar, which would otherwise be drawn over them."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def write(self, text: str) -> None:
        from rich.text import Text

        self.console.print(Text.from_ansi(text.removesuffix("\n")), soft_wrap=True)

    def flush(self) -> None:
        """Nothing is held back."""


def _bar(size: int) -> Any:
    """Return a bar, None where the terminal cannot move its cursor."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_interactive:
        return None
    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[files]} files"),
    )
    bar = Progress(*columns, console=console, transient=True)
    bar.add_task("", total=size, files="")
    return bar
