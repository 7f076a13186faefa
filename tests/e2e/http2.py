"""Just enough of HTTP/2 to see what a server does with a client that misbehaves."""
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 3, 4


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A header field, neither indexed nor Huffman-coded (RFC 7541, 6.2.2)."""
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
        self.cut_code = None  # HTTP/2 error code of the frame that ended a flood
        if hello:
            self.send(PREFACE + frame(SETTINGS, 0, 0, b""))

    def send(self, data):
        self.socket.settimeout(10)
        self.socket.sendall(data)

    def frames(self, seconds):
        """Yields (kind, flags, stream, payload) as frames arrive, for `seconds`; kind "closed" if the server closes."""
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
            except TimeoutError:
                data = None
            except ConnectionResetError:
                data = b""
            if not data:
                if data == b"":
                    yield "closed", 0, 0, b""
                return
            self.buffer += data

    def flood(self, stream, most, used=0):
        """Sends up to `most` bytes on a stream, as fast as the server's windows allow, for at most 60 s. `used` bytes
        of the windows are already spent; they count, because a byte beyond a window ends the stream. Returns
        (the kind of the frame that ended the stream or None, bytes sent)."""
        windows, sent, frames_sent = {0: 65535 - used, stream: 65535 - used}, 0, 0
        began = time.monotonic()
        while sent < most and time.monotonic() - began < 60:
            size = min(windows[0], windows[stream], 16384)
            if size > 0:
                try:
                    self.send(frame(DATA, 0, stream, b"x" * size))
                except OSError:
                    return "closed", sent
                windows[0] -= size
                windows[stream] -= size
                sent += size
                frames_sent += 1
                if frames_sent % 64:
                    continue
            for kind, flags, of, payload in self.frames(0.001 if size > 0 else 0.1):
                if kind == WINDOW_UPDATE and of in windows:
                    windows[of] += struct.unpack(">I", payload)[0]
                elif kind == SETTINGS and not flags & 1:
                    for i in range(0, len(payload), 6):
                        key, value = struct.unpack(">HI", payload[i:i + 6])
                        if key == INITIAL_WINDOW_SIZE:
                            windows[stream] += value - 65535
                    self.send(frame(SETTINGS, 1, 0, b""))
                elif kind == PING and not flags & 1:
                    self.send(frame(PING, 1, 0, payload))
                elif kind in (RST_STREAM, GOAWAY, "closed"):
                    if kind != "closed":
                        (self.cut_code,) = struct.unpack(">I", payload[:4] if kind == RST_STREAM else payload[4:8])
                    return kind, sent
        return None, sent

    def closed_within(self, seconds):
        """Seconds until the server sent GOAWAY or closed; None if it did neither."""
        began = time.monotonic()
        for kind, _, _, _ in self.frames(seconds):
            if kind in (GOAWAY, "closed"):
                return time.monotonic() - began
        return None

    def close(self):
        self.socket.close()
