"""http_attackers.py HOST PORT KIND COUNT [PATH [TOKEN]]: runs COUNT misbehaving clients against an HTTP port until the
process is killed. Replaces within 0.4 s each connection that the server closes. Prints "ready" when all clients have
begun to connect. PATH replaces the path of the request.
  drip     sends a byte of a request every 0.4 s
  silent   sends nothing
  deaf     asks for /metrics again and again and reads nothing
  flood    leaves each connection for a new one, 500 a second
  claim    begins a JSON body of 4 MiB and sends a byte of it every 0.4 s
  hoard    sends such a body at once, except its last byte
  endless  sends a JSON body in chunks of one byte, every 0.4 s
  upload   begins a form with a file of 1 GB and sends a byte of it every 0.4 s"""
import errno
import itertools
import resource
import selectors
import socket
import sys
import time

DRIP_S = 0.4
BODY_BYTES = 4 << 20
FILE_BYTES = 1_000_000_000


def head(method, path, *fields):
    return "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", "Host: localhost", *fields)).encode()


def drip(path="/livez", *fields):
    for byte in head("GET", path, *fields, "X-Slow: " + "x" * 4000):
        yield bytes([byte])


def silent():
    return itertools.repeat(b"")


def deaf(path="/metrics", *fields):
    return itertools.repeat((head("GET", path, *fields) + b"\r\n") * 20)


def posted(path, *fields):
    return head("POST", path, "Content-Type: application/json", *fields) + b"\r\n"


def claim(path="/v1/completions", *fields):
    yield posted(path, f"Content-Length: {BODY_BYTES}", *fields) + b'{"prompt": "'
    yield from itertools.repeat(b"x")


def hoard(path="/v1/completions", *fields):
    yield posted(path, f"Content-Length: {BODY_BYTES}", *fields) + b'{"prompt": "'.ljust(BODY_BYTES - 1, b"x")
    yield from itertools.repeat(b"")


def endless(path="/v1/completions", *fields):
    yield posted(path, "Transfer-Encoding: chunked", *fields) + b'c\r\n{"prompt": "\r\n'
    yield from itertools.repeat(b"1\r\nx\r\n")


def upload(path="/v1/files", *fields):
    yield (head("POST", path, "Content-Type: multipart/form-data; boundary=b", f"Content-Length: {FILE_BYTES}", *fields)
           + b'\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
           b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{"text": "')
    yield from itertools.repeat(b"x")


def connect(address):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    error = connection.connect_ex(address)
    assert error in (0, errno.EINPROGRESS), error
    return connection


def send(connection, data):
    """Returns the rest that the kernel does not take; None if the server has closed the connection."""
    try:
        return data[connection.send(data):]
    except BlockingIOError:
        return data
    except OSError:
        return None


def flood(address, count):
    connections = [connect(address) for _ in range(count)]
    print("ready", flush=True)
    while True:
        connections.pop(0).close()
        connections.append(connect(address))
        time.sleep(0.002)


def read_closed(connections):
    """Reads what there is; returns the connections that the server has closed."""
    closed = set()
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        for key, _ in selector.select(0):
            try:
                if not key.fileobj.recv(1 << 16):
                    closed.add(key.fileobj)
            except OSError:
                closed.add(key.fileobj)
    return closed


def hold(address, kind, count, *arguments):
    """`kind`: generates the pieces that a connection sends, one every 0.4 s."""
    connections = {connect(address): (b"", kind(*arguments)) for _ in range(count)}
    time.sleep(0.2)
    print("ready", flush=True)
    while True:
        began = time.monotonic()
        closed = set() if kind is deaf else read_closed(connections)
        for connection, (rest, pieces) in list(connections.items()):
            data = rest or next(pieces, b"")
            rest = None if connection in closed else send(connection, data) if data else b""
            if rest is None:
                connection.close()
                del connections[connection]
                connections[connect(address)] = b"", kind(*arguments)
            else:
                connections[connection] = rest, pieces
        time.sleep(max(0.0, DRIP_S - (time.monotonic() - began)))


if __name__ == "__main__":
    host, port, kind, count, *arguments = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if len(arguments) == 2:
        arguments[1] = f"Authorization: Bearer {arguments[1]}"
    if kind == "flood":
        flood((host, int(port)), int(count))
    hold((host, int(port)), {known.__name__: known for known in (drip, silent, deaf, claim, hoard, endless, upload)}[kind], int(count), *arguments)
