"""A real command below supervise, as a child of a tiny program that does what PID 1 must do."""

import json
import shlex
import subprocess
import sys

from trainer_agent.launchers.supervise import Ended

DRIVER = """
import dataclasses, json, os, signal, sys
from trainer_agent import log
from trainer_agent.launchers.supervise import supervise
log.configure({}, form="json")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # one may come after supervise has ended
grace, feeding, *argv = sys.argv[1:]
feed = (lambda line: b"hidden" not in line) if feeding == "feed" else None
ended = supervise(argv, os.environ, grace_s=float(grace), feed=feed)
print(json.dumps(dataclasses.asdict(ended)))
"""
# With a companion, who says what it hears, and whether it is enough.
WITH_COMPANION = """
class Companion:
    def start(self, pid):
        print("started", pid, flush=True)
    def stop(self, signum):
        print("asked", signum, flush=True)
        return {enough}
ended = supervise(argv, os.environ, grace_s=float(grace), feed=feed, companion=Companion())
"""
# A command says that it is ready, then does what the test wants.
READY = "import os, signal, subprocess, sys, threading; say = lambda: (print('ready', flush=True)); "
GRACEFUL = "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), os._exit(7))); "
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
# In short steps: Python runs no handler before the end of a call that the signal came just before.
STAY = "[time.sleep(0.1) for _ in range(600)]"
WAIT = "say(); [threading.Event().wait(0.1) for _ in iter(int, 1)]"


def start(code, *, grace=10.0, feed="none", companion=None, shell="", script="", prefix=(), stderr=subprocess.PIPE):
    alone = "ended = supervise(argv, os.environ, grace_s=float(grace), feed=feed)\n"
    driver = DRIVER if companion is None else DRIVER.replace(alone, WITH_COMPANION.replace("{enough}", str(companion)))
    command = [sys.executable, "-c", code]
    command = [shell, "-c", script or f"if :; then {shlex.join(command)}; fi"] if shell else command
    argv = [sys.executable, "-c", driver, str(grace), feed, *command]
    return subprocess.Popen([*prefix, *argv], stdout=subprocess.PIPE, stderr=stderr, text=True)


def finish(driver):
    """Return how the command ended without its duration, what it printed before, and standard error."""
    out, err = driver.communicate(timeout=60)
    *printed, last = out.splitlines() or [err]
    ended = json.loads(last)
    return Ended(**{**ended, "elapsed_s": 0.0}), printed, err


def run(code, **settings):
    with start(code, **settings) as driver:
        return finish(driver)
