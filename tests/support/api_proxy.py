"""Stands between nibbled and an API server: ends nibbled at a chosen moment of a request, and loses or delays what was on
the wire then."""
import http.client
import http.server
import json
import ssl
import threading


class Trap:
    """Springs once, at the first request with `method` ("SHOWN": a watch reports a new Job) that reaches `stage`:
      asked     the request is on its way; it is lost
      late      the request is on its way; it arrives when the next server sends the same one, or after `patience` seconds
      answered  the API server has acted; its answer is lost
      told      nibbled has the answer
    `name`: part of the request's path; "": any. `end` then ends nibbled, and `sprung` is set."""

    def __init__(self, method, stage, end, name="", patience=20):
        self.method, self.stage, self.end, self.name, self.patience = method, stage, end, name, patience
        self.taken, self.sprung, self.repeated = False, threading.Event(), threading.Event()
        self.request = None  # the identity of the request that arrives late, once the trap has sprung at stage "late"

    def springs_at(self, stage, method, path):
        return not self.taken and (self.method, self.stage) == (method, stage) and self.name in path


class Lost(Exception):
    """The request or its answer is lost."""


class ApiProxy:
    """`port`: of the API server, whose certificate `authority` issued. Thread-safe."""

    def __init__(self, folder, authority, port):
        self.port, self.trap = port, None
        # Held from a request's arrival to the end of its answer, so that no watch reports its effect in between.
        self.lock = threading.Lock()
        self.context = ssl.create_default_context(cafile=authority.certificate)
        certificate, key = authority.issue(f"proxy-{folder.name}", "IP:127.0.0.1")
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def connect(self):
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context)

    def at(self, stage, method, path):
        """Springs the trap if this is its moment. Raises Lost unless nibbled has the answer. Call with the lock held."""
        trap = self.trap
        if trap is None or not trap.springs_at(stage, method, path):
            return
        trap.taken = True
        trap.end()
        trap.sprung.set()
        if stage != "told":
            raise Lost


class Handler(http.server.BaseHTTPRequestHandler):
    """Passes requests on for `proxy`, which a subclass sets (handler_of)."""
    proxy = None
    protocol_version = "HTTP/1.1"
    upstream = None

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except (OSError, Lost):
            pass  # nibbled has left
        finally:
            if self.upstream is not None:
                self.upstream.close()

    def forward(self):
        """The API server's answer to this request."""
        if self.upstream is None:
            self.upstream = self.proxy.connect()
        headers = {name: self.headers[name] for name in ("Authorization", "Content-Type", "Accept") if name in self.headers}
        self.upstream.request(self.command, self.path, self.body, headers)
        return self.upstream.getresponse()

    def identity(self):
        """Equal for repetitions of one request."""
        return self.command, self.path, json.loads(self.body)["metadata"]["name"] if self.command == "POST" else ""

    def exchange(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        trap = self.proxy.trap
        if trap is not None and trap.request == self.identity():
            trap.repeated.set()
        if trap is not None and trap.springs_at("late", self.command, self.path):
            return self.arrive_late(trap)
        with self.proxy.lock:
            self.proxy.at("asked", self.command, self.path)
            answer = self.forward()
            data = answer.read()
            self.proxy.at("answered", self.command, self.path)
            self.send_response(answer.status)
            for name in ("Content-Type", "Retry-After"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()
            self.proxy.at("told", self.command, self.path)

    def arrive_late(self, trap):
        trap.taken, trap.request = True, self.identity()
        trap.end()
        trap.sprung.set()
        trap.repeated.wait(trap.patience)
        self.forward().read()
        raise Lost

    do_POST = do_DELETE = exchange

    def do_GET(self):
        if "watch=" not in self.path:
            return self.exchange()
        self.body = None
        answer = self.forward()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"])
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in answer:
            new_job = b'"type":"ADDED"' in line and json.loads(line)["object"]["kind"] == "Job"
            with self.proxy.lock:
                if new_job:
                    self.proxy.at("asked", "SHOWN", self.path)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
                if new_job:
                    self.proxy.at("told", "SHOWN", self.path)
        self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True


def handler_of(proxy):
    return type("HandlerOfAProxy", (Handler,), {"proxy": proxy})
