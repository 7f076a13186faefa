"""Just enough of HTTP/2 to see what a server does with a client that misbehaves."""
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
MAX_CONCURRENT_STREAMS = 3


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A header without compression (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path):
    return b"".join(literal(n, v) for n, v in [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers")])


class Connection:
    def __init__(self, address, hello=True):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.buffer = b""
        if hello:
            self.send(PREFACE + frame(SETTINGS, 0, 0, b""))

    def send(self, data):
        self.socket.sendall(data)

    def frames(self, seconds):
        """(kind, flags, stream, payload) as they come; ends when the server closes or the time is over."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            while len(self.buffer) >= 9 and len(self.buffer) >= 9 + int.from_bytes(self.buffer[:3], "big"):
                size = int.from_bytes(self.buffer[:3], "big")
                head, payload = self.buffer[:9], self.buffer[9:9 + size]
                self.buffer = self.buffer[9 + size:]
                yield head[3], head[4], int.from_bytes(head[5:9], "big"), payload
            self.socket.settimeout(max(0.01, until - time.monotonic()))
            try:
                data = self.socket.recv(65536)
            except (TimeoutError, ConnectionResetError):
                data = None
            if not data:
                if data == b"":
                    yield "closed", 0, 0, b""
                return
            self.buffer += data

    def closed_within(self, seconds):
        """Seconds until the server said GOAWAY or closed; None when it did not."""
        began = time.monotonic()
        for kind, _, _, _ in self.frames(seconds):
            if kind in (GOAWAY, "closed"):
                return time.monotonic() - began
        return None

    def close(self):
        self.socket.close()
