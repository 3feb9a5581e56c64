"""TCP proxy that cuts stream connections after a stated number of bytes, like a bad network before a real server."""

import contextlib
import socket
import threading
from collections import deque
from typing import Self
from urllib.parse import urlsplit


class CuttingProxy:
    """Proxy of one request per connection; an answer to a `/stream` request takes a limit from `limits`, if any."""

    def __init__(self, upstream_url: str) -> None:
        address = urlsplit(upstream_url)
        self._upstream = (address.hostname or "", address.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.limits: deque[int] = deque()
        self.num_cuts = 0
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _accept(self) -> None:
        workers = []
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                connection, _ = self._listener.accept()
                workers.append(threading.Thread(target=self._serve, args=(connection,)))
                workers[-1].start()
        for worker in workers:
            worker.join(10)

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._upstream) as server:
            head, _, body = self._read_head(client)
            if not head:
                return
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            server.sendall(b"\r\n".join([*lines, b"connection: close", b"", body]))
            is_cut = b"/stream " in lines[0] and self.limits
            self._pass_on(server, client, self.limits.popleft() if is_cut else None)

    def _read_head(self, client: socket.socket) -> tuple[bytes, bytes, bytes]:
        received = b""
        while b"\r\n\r\n" not in received:
            data = client.recv(65536)
            if not data:
                return b"", b"", b""
            received += data
        head, border, body = received.partition(b"\r\n\r\n")
        lengths = [
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        ]
        while len(body) < sum(lengths):
            body += client.recv(65536)
        return head, border, body

    def _pass_on(self, server: socket.socket, client: socket.socket, limit: int | None) -> None:
        while data := server.recv(65536):
            if limit is not None and len(data) >= limit:
                client.sendall(data[:limit])
                self.num_cuts += 1
                return
            client.sendall(data)
            limit = None if limit is None else limit - len(data)
