"""OpenAI's API over HTTP without a library."""
import http.client
import json

ROW = b'{"text": "The keeper counted the boats."}\n'
FORM = "multipart/form-data; boundary=b"


class HttpApi:
    """HttpApi(address).post("/v1/completions", model="small", prompt="a") returns the status and the JSON of the
    answer; `token` is sent with its requests. Keeps its connection as long as the server does."""

    def __init__(self, address, token=None):
        self.headers = {"Authorization": "Bearer " + token} if token else {}
        self.connection = http.client.HTTPConnection(address, timeout=120)

    def request(self, method, path, body=None, content_type="application/json"):
        """Returns the answer, whose body has not been read."""
        self.connection.request(method, path, body, {**self.headers, **({"Content-Type": content_type} if body is not None else {})})
        return self.connection.getresponse()

    def call(self, method, path, body=None, content_type="application/json"):
        """The server may refuse a body, and close the connection, before the body is sent."""
        try:
            answer = self.request(method, path, body, content_type)
            text = answer.read()
        except (BrokenPipeError, ConnectionResetError):
            self.connection.close()
            raise
        return answer.status, json.loads(text)

    def begin(self, path, content_type, body, length=None):
        """Sends the beginning of a body of `length` bytes, or, without a length, of chunks; does not read an answer."""
        self.connection.putrequest("POST", path)
        for name, value in {**self.headers, "Content-Type": content_type}.items():
            self.connection.putheader(name, value)
        self.connection.putheader(*(("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))))
        self.connection.endheaders()
        self.connection.send(b"%x\r\n%s\r\n" % (len(body), body) if length is None else body)

    def get(self, path):
        return self.call("GET", path)

    def post(self, path, **fields):
        return self.call("POST", path, json.dumps(fields))

    def events(self, path, **fields):
        """Iterates over the events of a streamed answer as they arrive."""
        answer = self.request("POST", path, json.dumps({"stream": True, **fields}))
        assert answer.status == 200, answer.read()
        for line in answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])

    def close(self):
        self.connection.close()


def expect(answer, status=200):
    """Returns the JSON of an answer of HttpApi."""
    assert answer[0] == status, answer
    return answer[1]


def form(rows):
    """The body of an upload; its Content-Type is FORM."""
    return (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + rows + b"\r\n--b--\r\n")


def upload(http):
    return expect(http.call("POST", "/v1/files", form(ROW), FORM))


def keep_response(http):
    """Keeps a response of 250 KB, whose constraint is as large; returns its path."""
    schema = {"type": "string", "description": "x" * 250_000}
    made = expect(http.post("/v1/responses", model="small-int8", input="a", max_output_tokens=2,
                            text={"format": {"type": "json_schema", "name": "a", "schema": schema}}))
    return f"/v1/responses/{made['id']}"
