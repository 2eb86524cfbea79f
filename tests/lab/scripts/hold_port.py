"""Listen on the port of the first argument in a child, then become the command of the other arguments."""

import os
import signal
import socket
import sys

listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
child = os.fork()
if child == 0:
    while True:
        signal.pause()
listener.close()
print(child, flush=True)
os.execv(sys.argv[2], sys.argv[2:])
