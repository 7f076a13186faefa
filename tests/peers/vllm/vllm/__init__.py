"""Stands in for vLLM, which the suite imports but which is not installed. Any name of any module can be imported; using
it fails, except for two."""
import importlib.abc
import importlib.machinery
import sys
import types


class Missing:
    """A name of vLLM."""

    def __init__(self, name):
        self.__dict__["name"] = name

    def __call__(self, *_, **__):
        raise NotImplementedError(f"{self.name} is vLLM's own code")

    def __add__(self, _):
        self()

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)  # pytest looks for some
        raise NotImplementedError(f"{self.name}.{attribute} is vLLM's own code")


class Bytes:
    """The tokenizer of the test's model: a token is a byte."""

    @staticmethod
    def decode(ids):
        return bytes(ids).decode()


class Hub:
    """The adapter is on the server already."""

    @staticmethod
    def snapshot_download(repo_id):
        return repo_id


USED = {"get_tokenizer": lambda tokenizer_name: Bytes, "hf_api": lambda: Hub}


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "VLLMValidationError":
            return type(name, (Exception,), {})
        if name in USED:
            return USED[name]
        return Missing(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("vllm.") else None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
