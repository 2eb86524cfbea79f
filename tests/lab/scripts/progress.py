"""A progress bar that never reaches its end."""

import signal
import sys

sys.stderr.write("10%\r20%")
sys.stderr.flush()
while True:
    signal.pause()
