"""Parses a Dockerfile into stages of instructions, and lists the files of its build context. Supports only what our
Dockerfile uses; anything else is an error, so that no step is silently skipped."""
import dataclasses
import fnmatch
import json
import pathlib
import re
import shlex

KNOWN = {"ARG", "COPY", "RUN", "ENV", "WORKDIR", "USER", "LABEL", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


@dataclasses.dataclass
class Step:
    word: str
    text: str
    line: int


@dataclasses.dataclass
class Stage:
    name: str
    base: str  # an image, or the name of an earlier stage
    steps: list

    def last(self, word):
        """The words of the stage's last instruction `word` (such as CMD) in exec form; [] if the stage has none."""
        found = [step for step in self.steps if step.word == word]
        return json.loads(found[-1].text[found[-1].text.index("["):]) if found else []


def substitute(text, values):
    return re.sub(r"\$\{(\w+)\}", lambda match: values[match.group(1)], text)


def logical_lines(text):
    line, begun = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        if not line and (not raw.strip() or raw.lstrip().startswith("#")):
            continue
        if line and raw.lstrip().startswith("#"):
            continue
        begun = begun if line else number
        line += raw.rstrip().removesuffix("\\") + (" " if raw.rstrip().endswith("\\") else "")
        if not raw.rstrip().endswith("\\"):
            yield begun, line.strip()
            line = ""


def parse(path):
    """Returns {name: Stage} in the file's order, and {name: default} of the ARGs before the first FROM, which are
    substituted in FROM."""
    stages, arguments = {}, {}
    current = None
    for number, line in logical_lines(pathlib.Path(path).read_text()):
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word == "FROM":
            base, _, name = substitute(rest, arguments).partition(" AS ")
            current = stages[name] = Stage(name, base, [])
        elif word == "ARG" and current is None:
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word in KNOWN and current is not None:
            current.steps.append(Step(word, rest, number))
        else:
            raise ValueError(f"{path}:{number}: {word} is not supported here")
    return stages, arguments


def arguments_of(stage, given, global_arguments):
    """Values of the stage's ARGs: the given value, else the default, else the global value."""
    values = {}
    for step in stage.steps:
        if step.word != "ARG":
            continue
        for part in shlex.split(step.text):
            name, _, default = part.partition("=")
            values[name] = given.get(name, default if "=" in part else global_arguments.get(name, ""))
    return values


def context_files(root):
    """Files of the build context that .dockerignore keeps, relative to root."""
    rules = []
    for line in (root / ".dockerignore").read_text().splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            rules.append((line.startswith("!"), line.lstrip("!")))

    def hit(path, pattern):
        if pattern.startswith("**/"):
            return any(fnmatch.fnmatch(part, pattern[3:]) for part in path.parts)
        if pattern == "*":
            return True
        if any(char in pattern for char in "*?["):
            raise ValueError(f".dockerignore: the pattern {pattern} is not supported here")
        return path == pathlib.PurePosixPath(pattern) or pathlib.PurePosixPath(pattern) in path.parents

    def kept(path):
        keep = True
        for allow, pattern in rules:
            if hit(path, pattern):
                keep = allow
        return keep

    found = []
    for top in sorted(root.iterdir()):
        if top.name in (".git", "build"):
            assert not kept(pathlib.PurePosixPath(top.name) / "x"), f".dockerignore does not exclude {top.name}"
            continue
        for path in sorted([top] if top.is_file() else top.rglob("*")):
            relative = pathlib.PurePosixPath(path.relative_to(root).as_posix())
            if path.is_file() and kept(relative):
                found.append(relative.as_posix())
    return found
