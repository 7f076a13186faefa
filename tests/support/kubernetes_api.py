"""Calls the API server of Kubernetes, for tests."""
import http.client
import json
import ssl
import urllib.parse

MERGE, STRATEGIC_MERGE = "application/merge-patch+json", "application/strategic-merge-patch+json"


class Refused(Exception):
    """An answer that is not 2xx."""

    def __init__(self, code, status):
        super().__init__(f"{code} {status.get('reason')}: {status.get('message')}")
        self.code = code


class Api:
    """`user`: the account in whose name the owner of the token calls; None: in its own name. Thread-safe: each call has its
    own connection."""

    def __init__(self, port, authority_file, token, user=None):
        self.port, self.headers = port, {"Authorization": f"Bearer {token}"}
        if user is not None:
            self.headers["Impersonate-User"] = user
        self.context = ssl.create_default_context(cafile=authority_file)

    def connect(self, timeout):
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=timeout)

    def call(self, method, path, body=None, content="application/json", **query):
        """Returns the answer's object; raises Refused, or OSError without an answer."""
        connection = self.connect(30)
        try:
            connection.request(method, target(path, query), None if body is None else json.dumps(body),
                               {**self.headers, "Content-Type": content})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        found = json.loads(text) if answer.headers.get_content_type() == "application/json" else {"message": text.decode()}
        if answer.status // 100 != 2:
            raise Refused(answer.status, found)
        return found

    def code(self, method, path, body=None, content="application/json", **query):
        """Calls, and returns the HTTP status of an error, or 200 for every success (2xx)."""
        try:
            self.call(method, path, body, content, **query)
        except Refused as refused:
            return refused.code
        return 200

    def watch(self, path, **query):
        """Yields ("ADDED", object) for each object of the collection, then the events. Ends if the connection does."""
        listed = self.call("GET", path, **query)
        for item in listed["items"]:
            yield "ADDED", item
        connection = self.connect(None)
        try:
            connection.request("GET", target(path, {**query, "watch": 1, "resourceVersion": listed["metadata"]["resourceVersion"]}),
                               headers=self.headers)
            answer = connection.getresponse()
            for line in answer if answer.status == 200 else ():
                event = json.loads(line) if line.endswith(b"\n") else {"type": "ERROR", "object": {}}
                yield event["type"], event["object"]
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()


def target(path, query):
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path
