"""Writes the modules of nibble_client that the repository does not contain: generate.py FOLDER

Two kinds of modules are generated into FOLDER/nibble_client:
- v1/: the messages and raw stubs of the API, by the protoc of grpcio-tools. They keep the descriptors' names
  (nibble/v1/*.proto) but import each other as nibble_client.v1, so they need no package `nibble`.
- _sync/: the synchronous client, from the sources in _async/ (see TO_SYNC). _sync/transport.py is not generated.

setup.py calls write_generated for a wheel. As a program, it also copies src/ to FOLDER, which makes a complete package.
"""
from __future__ import annotations

import pathlib
import re
import shutil
import sys
import tempfile

from google.protobuf import descriptor_pb2

HERE = pathlib.Path(__file__).resolve().parent

# Replacements that turn the source of the asynchronous client into that of the synchronous one, in this order.
TO_SYNC = [
    (r"\b(?:async|await) ", ""),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\b__a(enter|exit|iter)__\b", r"__\1__"),
    (r"\b__anext__\b", "__next__"),
    (r"\b_async\b", "_sync"),
    (r"\bAsync([A-Z]\w*)", r"\1"),  # AsyncClient, and AsyncIterator of collections.abc
]


def find_protos() -> pathlib.Path:
    """The folder of nibble/v1/*.proto: beside this file in a source distribution, else the repository's."""
    for folder in (HERE / "proto", HERE.parents[1] / "proto"):
        if (folder / "nibble/v1/common.proto").exists():
            return folder
    raise FileNotFoundError(f"no nibble/v1/*.proto in {HERE / 'proto'} or {HERE.parents[1] / 'proto'}")


def to_sync(source: str) -> str:
    for pattern, replacement in TO_SYNC:
        source = re.sub(pattern, replacement, source)
    return source


def run_protoc(protos: pathlib.Path, out: pathlib.Path, descriptors: pathlib.Path) -> None:
    import google.rpc
    import grpc_tools.protoc

    packaged = pathlib.Path(list(google.rpc.__path__)[0]).parents[1]
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    files = [str(path) for path in sorted((protos / "nibble/v1").glob("*.proto"))]
    with tempfile.TemporaryDirectory() as renamed:
        # The package has operations.proto under a name that differs from its import.
        operations = pathlib.Path(renamed) / "google/longrunning/operations.proto"
        operations.parent.mkdir(parents=True)
        shutil.copyfile(packaged / "google/longrunning/operations_proto.proto", operations)
        include = [f"-I{path}" for path in (protos, renamed, packaged, well_known)]
        outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python", "descriptor_set")]
        outputs[-1] = f"--descriptor_set_out={descriptors}"
        if grpc_tools.protoc.main(["protoc", *include, *outputs, *files]) != 0:
            raise RuntimeError("protoc failed; its messages are above")


def moved(source: str, name: str) -> str:
    """The source of a generated module with the package `nibble.v1` renamed to `nibble_client.v1`."""
    source = re.sub(r"^from nibble\.v1 import ", "from nibble_client.v1 import ", source, flags=re.M)
    if re.search(r"^\s*(?:from|import) nibble\b", source, flags=re.M):
        raise RuntimeError(f"protoc wrote an import of `nibble` into {name} in a form that generate.py does not know")
    return source


def strict(types: str) -> str:
    """The types that protoc wrote (.pyi), completed for `mypy --strict`."""
    types = re.sub(r"\b_Mapping\](?=,|\])", "_Mapping[str, object]]", types)
    types = re.sub(r", \*\*kwargs\)", ", **kwargs: object)", types)
    untyped = r"^(from google\.(?:longrunning|rpc) import .*)$"
    return re.sub(untyped, r"\1  # type: ignore[import-untyped]", types, flags=re.M)


def types_of_stubs(file: descriptor_pb2.FileDescriptorProto) -> str:
    """Types of a module with raw stubs, for which protoc writes none."""
    lines = ["from typing import Any", "", "import grpc", "import grpc.aio"]
    for service in file.service:
        lines += ["", f"class {service.name}Stub:",
                  "    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ..."]
        lines += [f"    {method.name}: Any" for method in service.method]
        lines += ["", f"class {service.name}Servicer:"]
        lines += [f"    def {method.name}(self, request: Any, context: Any) -> Any: ..." for method in service.method]
        lines += ["", f"def add_{service.name}Servicer_to_server(servicer: {service.name}Servicer, "
                  "server: grpc.Server | grpc.aio.Server) -> None: ..."]
    return "\n".join(lines) + "\n"


def write_stubs(protos: pathlib.Path, package: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        descriptors = pathlib.Path(work) / "descriptors"
        run_protoc(protos, pathlib.Path(work), descriptors)
        v1 = package / "v1"
        v1.mkdir(parents=True, exist_ok=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes())
        with_service = {pathlib.PurePath(file.name).stem for file in files.file if file.service}
        for path in sorted((pathlib.Path(work) / "nibble/v1").iterdir()):
            stem, is_grpc = path.stem.removesuffix("_pb2_grpc"), path.stem.endswith("_pb2_grpc")
            source = moved(path.read_text(), path.name)
            if not is_grpc or stem in with_service:
                (v1 / path.name).write_text(strict(source) if path.suffix == ".pyi" else source)
    names = ['"""Every message, enum and enum value of the API nibble.v1 (generated)."""']
    for file in files.file:
        module = pathlib.PurePath(file.name).stem + "_pb2"
        if file.service:
            (v1 / f"{module}_grpc.pyi").write_text(types_of_stubs(file))
        found = [message.name for message in file.message_type]
        for enum in file.enum_type:
            found += [enum.name, *(value.name for value in enum.value)]
        names += [f"from nibble_client.v1.{module} import {name} as {name}" for name in found]
    (v1 / "__init__.py").write_text("\n".join(names) + "\n")


def write_sync(package: pathlib.Path) -> None:
    for path in sorted((HERE / "src/nibble_client/_async").glob("*.py")):
        target = package / "_sync" / path.name
        if path.name not in ("__init__.py", "transport.py"):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(f"# Generated from _async/{path.name} by generate.py.\n{to_sync(path.read_text())}")


def write_generated(protos: pathlib.Path, package: pathlib.Path) -> None:
    write_stubs(protos, package)
    write_sync(package)


def main(folder: str) -> None:
    package = pathlib.Path(folder) / "nibble_client"
    shutil.copytree(HERE / "src/nibble_client", package, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__"))
    write_generated(find_protos(), package)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(sys.argv[1])
