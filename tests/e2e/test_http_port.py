"""Misbehaving clients of the HTTP port (docs/faults.md, C3) do not delay the answers to probes and scrapes."""
import http.client
import time

import pytest

from attacks import connections


def get(server, path, timeout):
    """Requests `path` over a new connection, as a kubelet does. Returns the seconds that it took."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(server.http, timeout=timeout)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200
    return time.monotonic() - began


def p99_of_probes(server, count):
    times = []
    for i in range(count):
        times.append(get(server, "/livez", timeout=5))
        if i % 10 == 0:
            get(server, "/metrics", timeout=10)
        time.sleep(0.02)
    return sorted(times)[int(len(times) * 0.99)]


def test_c3_slow_connections_do_not_hold_up_the_probes(make_server):
    server = make_server()
    with connections(server.http, "drip", 8, nice=0):
        for _ in range(40):  # 4 s
            assert get(server, "/livez", timeout=5) < 1
            time.sleep(0.1)


@pytest.mark.full
@pytest.mark.parametrize("kind, count", [("drip", 8), ("drip", 200), ("silent", 500), ("deaf", 100), ("flood", 50)])
def test_c3_probes_under_attack_take_at_most_three_times_as_long(make_server, kind, count):
    server = make_server()
    quiet = p99_of_probes(server, 200)
    with connections(server.http, kind, count, nice=0):
        attacked = p99_of_probes(server, 300)
    print(f"{kind} {count}: p99 of /livez {quiet * 1e3:.2f} ms quiet, {attacked * 1e3:.2f} ms attacked")
    assert attacked <= 3 * max(quiet, 0.005), "two busy cores may add 5 ms to any answer"
