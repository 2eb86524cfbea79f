"""
A worker as XGBoost's are: task 0 opens the tracker, all report to it, and go on when every task is there.

What it does then is its first argument: end, `fail` as task 1 does, or `save` until SIGTERM and then take 1 s.
"""

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

NAMES = ("DMLC_TASK_ID", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "DMLC_TRACKER_URI", "HOST")
task, workers = int(os.environ["DMLC_TASK_ID"]), int(os.environ["DMLC_NUM_WORKER"])
place = (os.environ["DMLC_TRACKER_URI"], int(os.environ["DMLC_TRACKER_PORT"]))


def track(server: socket.socket) -> None:
    """Take a line from every worker, tell all of them the sorted lines; who says nothing is none, as for XGBoost."""
    files = {}
    while len(files) < workers:
        file = server.accept()[0].makefile("rw")
        if line := file.readline():
            files[line] = file
    for file in files.values():
        file.write("".join(sorted(files, key=lambda line: int(line.split()[0]))) + "\n")
        file.flush()


def report() -> str:
    """Tell the tracker who we are; return what it knows of all."""
    for wait_s in (0.5, 1, 2, None):  # XGBoost tries at once, after 2 s, and after 4 s more, and then no longer
        try:
            connection = socket.create_connection(place, 20)
        except ConnectionRefusedError:
            if wait_s is None:
                raise
            time.sleep(wait_s)
        else:
            break
    file = connection.makefile("rw")
    me = {**os.environ, "HOST": socket.gethostname()}
    file.write(" ".join(me.get(name, "-") for name in NAMES) + "\n")
    file.flush()
    return "".join(iter(file.readline, "\n"))


def save(_signum: int, _frame: object) -> None:
    time.sleep(1)
    Path(f"saved-{task}").touch()
    sys.exit(1)


if task == 0:
    threading.Thread(target=track, args=(socket.create_server(("", place[1])),)).start()
signal.signal(signal.SIGTERM, save if sys.argv[1:] == ["save"] else signal.SIG_DFL)
everybody = report()
if int(os.environ["LOCAL_RANK"]) == 0:
    print(everybody, end="", flush=True)
print(f"task {task} goes on", flush=True)
if sys.argv[1:] == ["fail"] and task == 1:
    raise SystemExit(42)
if sys.argv[1:]:
    for _ in range(600):
        time.sleep(0.1)  # Python runs no handler before the end of a call that the signal came just before
