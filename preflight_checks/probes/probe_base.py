"""
What all probes share.

Probes run in the Python of the training image, which may be 3.8 and knows nothing of this program: they use torch and
the standard library alone. The request is a JSON object in the first argument, the answer one on the last line.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable

NO_TORCH = 3


def import_torch() -> Any:
    """Return torch; end with NO_TORCH where there is none."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.stderr.write(f"{error}\n")
        sys.exit(NO_TORCH)
    return torch


def main(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the request with what `work` returns for it."""
    request = json.loads(sys.argv[1])
    import_torch()
    sys.stdout.write("\n" + json.dumps(work(request)) + "\n")
    sys.stdout.flush()
