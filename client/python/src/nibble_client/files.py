"""Local files: what an import sends, the rows of a dataset as a file, and what a download writes."""
from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol, runtime_checkable

from nibble_client import v1
from nibble_client.errors import DataLoss, field_error, malformed
from nibble_client.messages import describe

CHUNK_BYTES = 1 << 20  # the limit of the protocol
_INDEX = "model.safetensors.index.json"
_TEXTS = {"config.json", "generation_config.json", "chat_template.jinja", "adapter_config.json", _INDEX}
_FRAME_ROWS = 1000  # rows of a frame that are converted at a time


@runtime_checkable
class Frame(Protocol):
    """The part of pandas.DataFrame that this module uses."""

    @property
    def iloc(self) -> Any: ...
    @property
    def columns(self) -> Any: ...
    def __len__(self) -> int: ...


# Rows of a dataset: dicts, a pandas.DataFrame or a datasets.Dataset; or the path of a JSONL or text file.
Rows = str | os.PathLike[str] | Frame | Iterable[Mapping[str, object]]


@dataclass(frozen=True)
class FileToSend:
    path: pathlib.Path
    name: str  # on the server
    size: int


def files_to_import(path: str | os.PathLike[str]) -> list[FileToSend]:
    """The files of a model: a .gguf file, or of a directory config.json, weights (*.safetensors; with an index, the
    index and only the files that it names), tokenizer*.json, chat_template.jinja, generation_config.json and
    adapter_config.json; without a config, its only .gguf file. No other file is sent."""
    root = pathlib.Path(path)
    if root.is_file():
        if root.suffix != ".gguf":
            field_error("path", f"the file {root}", "a .gguf file or a directory")
        return [_file(root)]
    if not root.is_dir():
        field_error("path", f"{root}, which does not exist", "a .gguf file or a directory")
    # Follows links, because the files in the Hugging Face cache are symbolic links.
    names = sorted(entry.name for entry in root.iterdir() if entry.is_file())
    is_model = "config.json" in names or "adapter_config.json" in names
    shards = _shards(root / _INDEX) if _INDEX in names else set()

    def wanted(name: str) -> bool:
        if not is_model:
            return name.endswith(".gguf")
        is_text = name in _TEXTS or (name.startswith("tokenizer") and name.endswith(".json"))
        return is_text or (name.endswith(".safetensors") and (not shards or name in shards))

    files = [_file(root / name) for name in names if wanted(name)]
    if not files:
        field_error("path", str(root), "a directory with config.json, adapter_config.json or a .gguf file")
    if not is_model and len(files) > 1:
        field_error("path", f"{root} with {len(files)} .gguf files", "the path of one of them")
    return files


def _file(path: pathlib.Path) -> FileToSend:
    size = path.stat().st_size
    if size == 0:
        field_error("path", f"{path}, which is empty", "files with content")
    return FileToSend(path, path.name, size)


def _shards(index: pathlib.Path) -> set[str]:
    """The shards that an index names. Empty for an unreadable index: then every shard is sent, and the server reports
    the error."""
    try:
        weights = json.loads(index.read_text())["weight_map"]
        return {name for name in weights.values() if isinstance(name, str)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return set()


@contextlib.contextmanager
def dataset_file(rows: Rows) -> Iterator[FileToSend]:
    """The rows as a file. Rows that are not in a file are written to a temporary one, one at a time, so that an
    interrupted upload continues at the byte where it stopped without a second copy in memory."""
    if isinstance(rows, (str, os.PathLike)):
        path = pathlib.Path(rows)
        if not path.is_file():
            field_error("rows", f"{path}, which is not a file", "the path of a file, or rows")
        yield FileToSend(path, path.name, path.stat().st_size)
        return
    with tempfile.TemporaryDirectory(prefix="nibble-") as folder:
        path = pathlib.Path(folder) / "rows.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            write_rows(rows, file)
        yield FileToSend(path, path.name, path.stat().st_size)


def write_rows(rows: Frame | Iterable[Mapping[str, object]], file: IO[str]) -> None:
    """Writes rows as JSON lines."""
    if isinstance(rows, Mapping) or not isinstance(rows, (Frame, Iterable)):
        field_error("rows", describe(rows), "a list of dicts, a DataFrame, a Dataset or a path")
    for number, row in enumerate(_frame_rows(rows) if isinstance(rows, Frame) else rows):
        if not isinstance(row, Mapping):
            field_error(f"rows[{number}]", describe(row), "a dict")
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
            line.encode()
        except (TypeError, ValueError) as error:
            field_error(f"rows[{number}]", f"{describe(row)} ({error})", "values that JSON can represent")
        file.write(line + "\n")


def _frame_rows(frame: Frame) -> Iterator[Mapping[str, object]]:
    """The rows of a DataFrame. A missing value (None, NaN, NaT) leaves its field out."""
    for begin in range(0, len(frame), _FRAME_ROWS):
        for row in frame.iloc[begin:begin + _FRAME_ROWS].to_dict("records"):
            yield {str(name): value for name, value in row.items() if not _is_missing(value)}


def _is_missing(value: object) -> bool:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return type(value).__name__ in ("NAType", "NaTType")  # of pandas, which this module does not import


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy as Python values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


class Sha256:
    """A digest over all bytes that were sent or received."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def update(self, data: bytes) -> None:
        self._digest.update(data)

    def hex(self) -> str:
        return self._digest.hexdigest()


class FileReader:
    """Reads a file in chunks. The bytes before `skip` count in the digest, but only those after it are returned."""

    def __init__(self, file: FileToSend, skip: int, digest: Sha256) -> None:
        self._file = file
        self._skip = skip
        self._digest = digest
        self._read = 0
        self._stream = open(file.path, "rb")

    def next_chunk(self) -> bytes:
        """The next bytes to send; empty at the end."""
        while True:
            data = self._stream.read(CHUNK_BYTES)
            self._read += len(data)
            if self._read > self._file.size or (not data and self._read < self._file.size):
                field_error("path", f"{self._file.path}, which changed during the upload",
                            f"a file that keeps its size of {self._file.size} bytes")
            if not data:
                return b""
            self._digest.update(data)
            fresh = self._read - self._skip
            if fresh > 0:
                return data[-fresh:] if fresh < len(data) else data

    @property
    def done(self) -> int:
        """Bytes of the file that are read."""
        return self._read

    def close(self) -> None:
        self._stream.close()


class Receiver:
    """Writes the files of a download below a directory, each under a temporary name until its digest matches. The
    server is untrusted: paths stay below the directory; sizes and digests must match."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = pathlib.Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._entry = v1.FileEntry()
        self._file: IO[bytes] | None = None
        self._digest = Sha256()
        self._all = Sha256()
        self._size = 0
        self._names: set[str] = set()
        self._finished = False
        self.bytes = 0
        self.received: list[v1.FileEntry] = []

    def take(self, message: v1.DownloadArtifactResponse) -> None:
        kind = message.WhichOneof("message")
        if self._finished:
            raise malformed("a message after the last")
        if kind == "file":
            self._begin(message.file)
        elif kind == "chunk":
            self._chunk(message.chunk)
        elif kind == "finish":
            self._end()
            self._finished = True
            if self._all.hex() != message.finish.sha256:
                raise DataLoss("SHA-256 of the received files differs from the server's")
        else:
            raise malformed("an empty message")

    def finish(self) -> list[v1.FileEntry]:
        if not self._finished:
            raise malformed("the files ended without their digest")
        return self.received

    def drop(self) -> None:
        """Removes a file that is not complete."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._partial().unlink(missing_ok=True)

    def _begin(self, entry: v1.FileEntry) -> None:
        self._end()
        if not _is_safe(entry.path):
            raise malformed(f"unsafe file name: {entry.path!r}")
        if entry.path in self._names:
            raise malformed(f"duplicate file {entry.path}")
        if entry.size_bytes < 0:
            raise malformed(f"{entry.path} has a negative size")
        self._names.add(entry.path)
        self._entry = entry
        self._digest = Sha256()
        self._size = 0
        self._partial().parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._partial(), "wb")

    def _chunk(self, data: bytes) -> None:
        if self._file is None:
            raise malformed("a chunk before any file")
        self._size += len(data)
        if self._size > self._entry.size_bytes:
            raise malformed(f"{self._entry.path} is longer than announced")
        self._digest.update(data)
        self._all.update(data)
        self.bytes += len(data)
        self._file.write(data)

    def _end(self) -> None:
        if self._file is None:
            return
        if self._size != self._entry.size_bytes:
            raise malformed(f"{self._entry.path} is shorter than announced")
        if self._entry.sha256 not in ("", self._digest.hex()):
            raise DataLoss(f"{self._entry.path}: got SHA-256 {self._digest.hex()}, wanted {self._entry.sha256}")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        os.replace(self._partial(), self._directory / self._entry.path)
        done = v1.FileEntry()
        done.CopyFrom(self._entry)
        done.sha256 = self._digest.hex()
        self.received.append(done)

    def _partial(self) -> pathlib.Path:
        return self._directory / f"{self._entry.path}.partial"


class RowsReceiver:
    """Writes the rows of a dataset to a file, under a temporary name until they are complete."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(path)
        if self._path.is_dir() or not self._path.parent.is_dir():
            field_error("path", str(path), "the path of a file in a directory that exists")
        self._partial = self._path.with_name(self._path.name + ".partial")
        self._file = open(self._partial, "wb")
        self.bytes = 0

    def take(self, message: v1.DownloadDatasetResponse) -> None:
        self._file.write(message.chunk)
        self.bytes += len(message.chunk)

    def finish(self) -> int:
        """Gives the file its name. Returns its size."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self._path)
        return self.bytes

    def drop(self) -> None:
        """Removes a file that is not complete."""
        if not self._file.closed:
            self._file.close()
            self._partial.unlink(missing_ok=True)


def _is_safe(path: str) -> bool:
    if not path or len(path) > 255 or "\\" in path or any(letter < " " for letter in path):
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))
