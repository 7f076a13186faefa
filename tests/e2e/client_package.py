"""The package nibble_client for tests, and one way to call its synchronous and its asynchronous client."""
import asyncio
import functools
import importlib
import inspect
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def folder():
    """A folder with the package, generated from client/python for this run."""
    made = tempfile.TemporaryDirectory(prefix="nibble-client-")
    subprocess.run([sys.executable, ROOT / "client/python/generate.py", made.name], check=True)
    return made  # the cache keeps it until the tests end


def load():
    """Imports nibble_client: the installed package if NIBBLE_CLIENT_INSTALLED is set, else that of folder()."""
    if "nibble_client" not in sys.modules and not os.environ.get("NIBBLE_CLIENT_INSTALLED"):
        sys.path.insert(0, folder().name)
    return importlib.import_module("nibble_client")


class Blocking:
    """Calls an object of the asynchronous client as if it were synchronous. One event loop in a thread runs all calls."""

    loop = None

    def __init__(self, wrapped):
        self.wrapped = wrapped
        if Blocking.loop is None:
            Blocking.loop = asyncio.new_event_loop()
            threading.Thread(target=Blocking.loop.run_forever, daemon=True).start()

    @staticmethod
    def run(awaitable):
        return asyncio.run_coroutine_threadsafe(Blocking.awaited(awaitable), Blocking.loop).result(300)

    @staticmethod
    async def awaited(awaitable):
        return await awaitable

    @classmethod
    def seen(cls, value):
        """The value as the synchronous client returns it."""
        if inspect.isawaitable(value):
            return cls.seen(cls.run(value))
        if inspect.isasyncgen(value):
            return cls.iterated(value)
        own = type(value).__module__.startswith("nibble_client._async")
        return cls(value) if own else value

    @classmethod
    def iterated(cls, iterator):
        try:
            while True:
                try:
                    yield cls.run(iterator.__anext__())
                except StopAsyncIteration:
                    return
        finally:  # without a wait, because the garbage collector may run this in the loop's own thread
            asyncio.run_coroutine_threadsafe(iterator.aclose(), cls.loop)

    def __getattr__(self, name):
        value = getattr(self.wrapped, name)
        if not callable(value):
            return self.seen(value)
        return lambda *arguments, **options: self.seen(value(*arguments, **options))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.run(self.wrapped.__aexit__(*error))

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.run(self.wrapped.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


def connect(kind, target, **options):
    """A client of this kind, "sync" or "async"."""
    package = load()
    return package.Client(target, **options) if kind == "sync" else Blocking(package.AsyncClient(target, **options))
