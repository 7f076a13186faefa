"""Writes the Python modules of Nibble's API into a folder: make_stubs.py FOLDER

Needs the packages grpcio-tools and googleapis-common-protos. Put the folder on Python's path to import nibble.v1.
"""
import pathlib
import sys
import tempfile

import google.rpc
import grpc_tools.protoc


def main(folder):
    protos = pathlib.Path(__file__).resolve().parents[2] / "proto"
    packaged = pathlib.Path(list(google.rpc.__path__)[0]).parents[1]
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as renamed:
        # The package has operations.proto under a name that differs from its import.
        operations = pathlib.Path(renamed) / "google/longrunning/operations.proto"
        operations.parent.mkdir(parents=True)
        operations.symlink_to(packaged / "google/longrunning/operations_proto.proto")
        include = [f"-I{path}" for path in (protos, renamed, packaged, well_known)]
        files = [str(path) for path in sorted((protos / "nibble/v1").glob("*.proto"))]
        return grpc_tools.protoc.main(["protoc", *include, f"--python_out={folder}", f"--grpc_python_out={folder}", *files])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
