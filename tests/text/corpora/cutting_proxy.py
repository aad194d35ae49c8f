"""A proxy that cuts off the responses of a local Hub, and counts the bytes it has forwarded."""

import contextlib
import re
import socket
import threading

CLOSE = b"\r\nConnection: close\r\n"


class CuttingProxy:
    """Passes HTTP between clients and a server; of each answer, no more than `limit` bytes while that is set.

    Args:
        address (`tuple[str, int]`):
            Of the server.
    """

    def __init__(self, address: tuple[str, int]):
        self.address = address
        self.limit: int | None = None
        self.passed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request a connection: the server is asked to close it, so that the end of the answer is seen."""
        with client, socket.create_connection(self.address) as server:
            head = b""
            while b"\r\n\r\n" not in head:
                part = client.recv(65536)
                if not part:
                    return
                head += part
            head = re.sub(rb"(?im)^connection:.*\r\n", b"", head)
            server.sendall(head.replace(b"\r\n", CLOSE, 1))
            threading.Thread(target=_pass_on, args=(client, server), daemon=True).start()
            sent, closing = 0, CLOSE
            while part := server.recv(65536):
                part, closing = part.replace(b"\r\n", closing, 1), b"\r\n"  # the client must not use it again
                part = part if self.limit is None else part[: self.limit - sent]
                if not part:
                    break
                client.sendall(part)
                sent += len(part)
                self.passed += len(part)
            client.shutdown(socket.SHUT_WR)  # a clean end, not a reset


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    """The body of a request, if it has one."""
    with contextlib.suppress(OSError):
        while part := client.recv(65536):
            server.sendall(part)
