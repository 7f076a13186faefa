"""Shared by tests of attacks by one client (docs/faults.md, C1 to C10): attackers in processes of their own, and the
p99 of well-behaved clients with and without them."""
import contextlib
import os
import pathlib
import subprocess
import sys
import time

CALLS = 300
# Below this, a percentile shows only the scheduling of two cores, which no client notices.
SCHEDULING_S = 0.010
HERE = pathlib.Path(__file__).parent

# Callers of gRPC's API (Api of wire.py) or of OpenAI's (HttpApi of http_api.py). The first exception ends them all.
CALLERS = """
import os, sys, threading
from http_api import *
from wire import Api, message
def end(failure):
    sys.excepthook(failure.exc_type, failure.exc_value, failure.exc_traceback)
    os._exit(1)
threading.excepthook = end
def attack():
    api = {api}(sys.argv[1], *sys.argv[3:])
    while True:
        {body}
threads = [threading.Thread(target=attack, daemon=True) for _ in range(int(sys.argv[2]))]
for thread in threads: thread.start()
print("ready", flush=True)
for thread in threads: thread.join()
"""


@contextlib.contextmanager
def process_of(*arguments, nice=19):
    """Runs Python with these arguments, until the end of the context. The process prints "ready" when it has begun and
    must not end by itself. By default it has the lowest priority, as if on a machine of its own, so that it affects
    others only through the server."""
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.nice(nice)) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield
            assert process.poll() is None, "the attack ended early"
        finally:
            process.kill()


@contextlib.contextmanager
def callers(api, address, count, body, token):
    with process_of("-c", CALLERS.format(api=api, body=body), address, count, *token):
        time.sleep(1)  # every caller has begun
        yield


def attackers(server, count, body, *token):
    """Runs `count` callers of the gRPC API, each of which executes `body` (with `api` in scope) in a loop, with this
    token if there is one."""
    return callers("Api", server.grpc, count, body, token)


def http_callers(server, count, body, *token):
    """As attackers(), for OpenAI's API: `api` is an HttpApi."""
    return callers("HttpApi", server.openai, count, body, token)


def connections(address, kind, count, *arguments, nice=19):
    """Runs http_attackers.py with these arguments and process_of()."""
    host, port = address.rsplit(":", 1)
    return process_of(HERE / "http_attackers.py", host, port, kind, count, *arguments, nice=nice)


def p99_of(calls):
    """Maps the name of each call to the seconds within which 99 of 100 calls were answered."""
    worst = {}
    for name, call in calls.items():
        took = []
        for _ in range(CALLS):
            began = time.monotonic()
            call()
            took.append(time.monotonic() - began)
        worst[name] = sorted(took)[CALLS * 99 // 100]
    return worst


def check_beside(quiet, attacked, slack=1):
    """`slack`: factor on the limit of three times the quiet p99, for tests whose result depends on other work on the
    machine."""
    for name, seconds in quiet.items():
        print(f"{name}: p99 {seconds * 1e3:.1f} ms quiet, {attacked[name] * 1e3:.1f} ms under attack")
    for name, seconds in quiet.items():
        assert attacked[name] <= slack * 3 * max(seconds, SCHEDULING_S), f"{name}: {attacked[name]} s under attack, {seconds} s without"
