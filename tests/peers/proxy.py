"""A proxy between a test suite of another project and nibbled. It replaces the suite's placeholder ids by ids of this
server, and leaves everything else unchanged."""
import http.client
import http.server
import json
import re
import sys
import threading
import urllib.parse

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


class Ids:
    """Which ids replace which.

    names: by placeholder, in the fields `fields` of JSON bodies, and as a whole segment of a path.
    pools: by (method, pattern of a path as the suite wrote it); each such request takes the next id in place of the
           pattern's group, for calls that use an object up, such as a deletion.
    defaults: fields of JSON bodies that do not have them.
    """

    FIELDS = ("model", "training_file", "validation_file")

    def __init__(self, names, pools=None, defaults=None):
        self.names = names
        self.pools = [(method, re.compile(pattern), list(ids)) for (method, pattern), ids in (pools or {}).items()]
        self.defaults = defaults or {}
        self.lock = threading.Lock()

    def path(self, method, target):
        path, mark, query = target.partition("?")
        for wanted, pattern, ids in self.pools:
            found = pattern.fullmatch(urllib.parse.unquote(path)) if method == wanted else None
            if found:
                with self.lock:
                    return found.string[:found.start(1)] + ids.pop(0) + found.string[found.end(1):] + mark + query
        parts = [urllib.parse.quote(self.names[name], safe="") if (name := urllib.parse.unquote(part)) in self.names else part
                 for part in path.split("/")]
        return "/".join(parts) + mark + query

    def body(self, content_type, body):
        if "json" not in content_type:
            return body
        try:
            message = json.loads(body)
        except ValueError:
            return body  # the server refuses it
        if not isinstance(message, dict):
            return body
        for field in self.FIELDS:
            if isinstance(message.get(field), str) and message[field] in self.names:
                message[field] = self.names[message[field]]
        message.update({field: value for field, value in self.defaults.items() if message.get(field) is None})
        return json.dumps(message).encode()


class Proxy:
    """Forwards to `address` (HOST:PORT), from the time of `with` to its end. `calls` are the forwarded (method, path,
    status); GET /peer-requests returns their number."""

    def __init__(self, address, ids):
        proxy = self
        self.calls = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self):
                if self.path == "/peer-requests":
                    return self.count()
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if "chunked" in self.headers.get("Transfer-Encoding", ""):
                    body = self.read_chunks()
                path = ids.path(self.command, self.path)
                body = ids.body(self.headers.get("Content-Type", ""), body)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
                connection = http.client.HTTPConnection(address, timeout=120)
                try:
                    connection.request(self.command, path, body or None, {**headers, "Connection": "close"})
                    answer = connection.getresponse()
                    proxy.calls.append((self.command, path, answer.status))
                    self.answer(answer)
                finally:
                    connection.close()

            def count(self):
                text = str(len(proxy.calls)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def read_chunks(self):
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def answer(self, answer):
                self.send_response(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP_BY_HOP:
                        self.send_header(name, value)
                length = answer.getheader("Content-Length")
                self.send_header(*(("Content-Length", length) if length else ("Transfer-Encoding", "chunked")))
                self.end_headers()
                while piece := answer.read1(65536):
                    self.wfile.write(piece if length else b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                if not length:
                    self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = do_OPTIONS = forward

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                if not isinstance(sys.exc_info()[1], ConnectionError):  # else the suite closed its connection
                    super().handle_error(request, client_address)

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
