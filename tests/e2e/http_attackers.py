"""http_attackers.py HOST PORT KIND COUNT: runs COUNT misbehaving clients against the HTTP port until the process is
killed. Replaces within 0.4 s each connection that the server closes. Prints "ready" when all clients have begun to
connect.
  drip    sends a byte of a request every 0.4 s
  silent  sends nothing
  deaf    asks for /metrics again and again and reads nothing
  flood   leaves each connection for a new one, 500 a second"""
import errno
import selectors
import socket
import sys
import time

DRIP_S = 0.4
REQUEST = b"GET /livez HTTP/1.1\r\nHost: test\r\nX-Slow: " + b"x" * 4000
SCRAPES = b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n" * 20


def connect(address):
    connection = socket.socket()
    connection.setblocking(False)
    error = connection.connect_ex(address)
    assert error in (0, errno.EINPROGRESS), error
    return connection


def send(connection, data):
    """Returns False if the server has closed the connection."""
    try:
        connection.send(data)
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


def flood(address, count):
    connections = [connect(address) for _ in range(count)]
    print("ready", flush=True)
    while True:
        connections.pop(0).close()
        connections.append(connect(address))
        time.sleep(0.002)


def hold(address, kind, count):
    connections = {connect(address): 0 for _ in range(count)}
    time.sleep(0.2)
    print("ready", flush=True)
    while True:
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for connection in connections:
                selector.register(connection, selectors.EVENT_READ)
            closed = set()
            if kind != "deaf":
                for key, _ in selector.select(0):
                    try:
                        if not key.fileobj.recv(1 << 16):
                            closed.add(key.fileobj)
                    except OSError:
                        closed.add(key.fileobj)
        for connection, sent in list(connections.items()):
            data = {"drip": REQUEST[sent:sent + 1], "silent": b"", "deaf": SCRAPES}[kind]
            if connection in closed or (data and not send(connection, data)):
                connection.close()
                del connections[connection]
                connections[connect(address)] = 0
            else:
                connections[connection] = sent + 1
        time.sleep(max(0.0, DRIP_S - (time.monotonic() - began)))


if __name__ == "__main__":
    host, port, kind, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    flood((host, port), count) if kind == "flood" else hold((host, port), kind, count)
