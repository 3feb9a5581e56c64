"""Small HTTP servers on this machine, each one function."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def read_body(request: BaseHTTPRequestHandler) -> bytes:
    """Return the body of a request of stated length."""
    return request.rfile.read(int(request.headers.get("Content-Length", 0)))


def reply(request: BaseHTTPRequestHandler, status: int = 200, body: bytes = b"", **headers: object) -> None:
    """Answer a request with its body's length and these headers, of which `_` is a dash."""
    request.send_response(status)
    for name, value in {"Content_Length": len(body), **headers}.items():
        request.send_header(name.replace("_", "-"), str(value))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], object]) -> Iterator[str]:
    """Yield the URL of a server that has `answer` send its answers, in a thread for each connection."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_POST = do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Print nothing: a client may leave at any time."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
