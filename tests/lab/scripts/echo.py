"""Send back what comes to PORT, by UDP and by TCP; print what came by UDP."""

import socket
import sys
import threading

PORT = int(sys.argv[1])


def echo_tcp(connection: socket.socket) -> None:
    """Send back until the other side ends or breaks."""
    try:
        with connection:
            while data := connection.recv(65_536):
                connection.sendall(data)
    except OSError:
        pass


def accept() -> None:
    """Give every connection a thread."""
    while True:
        connection, _address = listener.accept()
        threading.Thread(target=echo_tcp, args=[connection], daemon=True).start()


listener = socket.create_server(("0.0.0.0", PORT), backlog=256)
datagrams = socket.socket(type=socket.SOCK_DGRAM)
datagrams.bind(("0.0.0.0", PORT))
threading.Thread(target=accept, daemon=True).start()
print("ready", flush=True)
while True:
    data, sender = datagrams.recvfrom(65_536)
    print(data.decode(), flush=True)
    datagrams.sendto(data, sender)
