"""An HTTP server that answers in every way there is, and a proxy; both on loopback, both note what they are asked."""

import select
import socket
import ssl
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BODY = bytes(range(256)) * 4096  # 1 MiB
FIRST_BYTES = 256 * 1024  # what `/stalled` sends before it stalls


class Server(ThreadingHTTPServer):
    """Counts connections, and notes what was asked: its handlers end with it."""

    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.connections = 0
        self.asked = []
        self.ending = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request, client_address):
        self.connections += 1
        super().process_request(request, client_address)

    def handle_error(self, request, client_address):
        """Clients of these tests leave in the middle."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", *, length=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)


class Origin(Handler):
    def do_HEAD(self):
        self.answer(200, length=len(BODY))

    def do_POST(self):
        self.answer(200, self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("X-Own", "")))
        getattr(self, self.path.partition("?")[0].strip("/").replace("-", "_"))()

    def whole(self):
        self.answer(200, BODY)

    def empty(self):
        self.answer(200)

    def moved(self):
        self.answer(302, Location="/whole")

    def busy(self):
        self.answer(503, b"<Error>SlowDown</Error>", Retry_After="7")

    def absent(self):
        self.answer(404, b"x" * 100_000)

    def zipped(self):
        self.answer(200, b"not gzip at all", Content_Encoding="gzip")

    def cut(self):
        self.answer(200, BODY[:1000], length=2000)
        self.close_connection = True

    def stalled(self):
        self.answer(200, BODY[:FIRST_BYTES], length=len(BODY))
        self.wfile.flush()
        self.server.ending.wait(30)

    def silent(self):
        self.server.ending.wait(30)

    def nonsense(self):
        self.wfile.write(b"this is no HTTP\r\n\r\n")
        self.close_connection = True

    def unframed(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(BODY)
        self.close_connection = True

    def chunked(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(BODY), 65536):
            self.wfile.write(b"10000\r\n" + BODY[at : at + 65536] + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")


class Proxy(Handler):
    """Forwards nothing but tunnels; says what it was asked."""

    def note(self):
        self.server.asked.append((self.command, self.path, self.headers.get("Proxy-Authorization", "")))

    def do_GET(self):
        self.note()
        self.answer(200, b"from the proxy")

    def do_CONNECT(self):
        self.note()
        host, _, port = self.path.partition(":")
        with socket.create_connection((host, int(port))) as upstream:
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: upstream, upstream: self.connection}
            while not self.server.ending.is_set():
                for end in select.select(list(ends), [], [], 0.02)[0]:
                    data = end.recv(65536)
                    if not data:
                        self.close_connection = True
                        return
                    ends[end].sendall(data)


@contextmanager
def served(handler, *, certificate=None):
    with ExitStack() as stack:
        server = stack.enter_context(Server(handler))
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            server.url = server.url.replace("http:", "https:")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        stack.callback(server.ending.set)
        yield server
