"""Stands in for the suite's module that starts vLLM's server: the server is the one behind the proxy."""
import os

import openai


class RemoteOpenAIServer:
    def __init__(self, model, arguments):
        """`arguments` choose the precision, length and adapters of vLLM's server."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def url_for(self, *parts):
        return "/".join([os.environ["PEER_PROXY"], *parts])

    def get_async_client(self, **options):
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="unused", max_retries=0, **options)
