"""Builds the package: setuptools copies src/, then generate.py adds the modules that are not in the repository.

The repository keeps the protos two folders above this file; a source distribution has a copy beside it.
"""
import pathlib
import shutil
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # for generate.py: a build of a wheel does not import from this folder
(HERE / ".build").mkdir(exist_ok=True)  # setup.cfg names it, and setuptools does not make it


class GenerateToo(build_py):
    def run(self) -> None:
        import generate

        shutil.rmtree(pathlib.Path(self.build_lib) / "nibble_client", ignore_errors=True)  # files of an earlier build
        super().run()
        generate.write_generated(generate.find_protos(), pathlib.Path(self.build_lib) / "nibble_client")


class SdistWithProtos(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        import generate

        super().make_release_tree(base_dir, files)
        protos = generate.find_protos()
        for proto in sorted((protos / "nibble/v1").glob("*.proto")):
            copy = pathlib.Path(base_dir) / "proto" / proto.relative_to(protos)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(proto, copy)


setup(cmdclass={"build_py": GenerateToo, "sdist": SdistWithProtos})
