#!/usr/bin/env python3
"""Runs the steps of the Dockerfile, read from the file itself, in roots made by debootstrap, to test an image without
docker. Needs root and a Debian mirror.

  image_root.py STAGE --work DIR                      runs STAGE and all stages that it needs, including the build (half
                                                      an hour)
  image_root.py STAGE --work DIR --build-tree TREE    runs the same stages, but of the build stage only the step
                                                      cmake --install, on an existing build

Leaves the root of the image in DIR/STAGE."""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import dockerfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Network configuration of this machine, copied into the base. docker itself passes on the first two; the others would
# be in a company's own base image.
NETWORK_FILES = ["etc/resolv.conf", "etc/hosts", "etc/pip.conf", "etc/apt/sources.list", "etc/apt/sources.list.d",
                 "usr/local/share/ca-certificates"]


def say(text):
    print(f"image: {text}", flush=True)


def make_base(work):
    """A minimal Debian 12, like the base image. Made once per work directory."""
    base = work / "base"
    if (base / "etc/debian_version").exists():
        return base
    say("debootstrap: Debian 12, minbase")
    shutil.rmtree(work / "base.part", ignore_errors=True)
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", work / "base.part"], check=True, stdout=subprocess.DEVNULL)
    for name in NETWORK_FILES:
        source, target = pathlib.Path("/") / name, work / "base.part" / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, target)
        elif name == "etc/apt/sources.list":
            target.unlink(missing_ok=True)
    (work / "base.part").rename(base)
    return base


def cache_mount(text, work):
    """Parses `--mount=type=cache,target=X command` to (host's folder, X, command). The folder is kept after the run, as
    docker does."""
    match = re.match(r"--mount=type=cache,target=(\S+)\s+(.*)", text)
    if not match:
        assert not text.startswith("--"), f"an option that is not supported here: {text}"
        return None, "", text
    folder = work / "cache" / match[1].strip("/").replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    return folder, match[1], match[2]


def run_in(root, text, environment, directory, work):
    """Runs the text of a RUN step as root in `root`, with /proc and /dev mounted in a separate namespace."""
    cache, target, command = cache_mount(text, work)
    # $1: root, $2: directory, $3: command, $4: folder of the cache or "", $5: its place in the root, $6 ...: environment
    script = ('mount --make-rprivate / && mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && '
              'if [[ -n $4 ]]; then mkdir -p "$1$5" && mount --bind "$4" "$1$5"; fi && '
              'exec chroot "$1" /usr/bin/env -i "${@:6}" /bin/sh -c "cd $2 && $3"')
    values = {"PATH": PATH, "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", **environment}
    subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", script, "run", root, shlex.quote(directory),
                    command, cache or "", target, *(f"{key}={value}" for key, value in values.items())], check=True)


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--reflink=auto", "--no-preserve=ownership", source, target], check=True)


def copy_step(step, root, roots, directory):
    words = shlex.split(step.text)
    options = [word for word in words if word.startswith("--")]
    *sources, target = [word for word in words if not word.startswith("--")]
    target = pathlib.PurePosixPath(directory) / target
    if options:
        (option,) = options
        name = option.removeprefix("--from=")
        assert name != option, f"line {step.line}: {option} is not supported here"
        (source,) = sources
        subprocess.run(["cp", "-a", "--no-preserve=ownership", f"{roots[name]}{source}.", f"{root}{target}"], check=True)
        return
    files = dockerfile.context_files(ROOT)
    for source in sources:
        source = source.rstrip("/").removeprefix("./")
        folder = source == "." or (ROOT / source).is_dir()
        taken = [name for name in files if source in (".", name) or (folder and name.startswith(source + "/"))]
        assert taken, f"line {step.line}: .dockerignore excludes all of {source}"
        for name in taken:
            inside = name if source == "." else name.removeprefix(source + "/") if folder else pathlib.PurePosixPath(name).name
            copy(ROOT / name, root / str(target).lstrip("/") / inside)


def make_stage(stage, base, roots, work, values):
    root = work / stage.name
    shutil.rmtree(root, ignore_errors=True)
    say(f"stage {stage.name}: from {base.name}")
    subprocess.run(["cp", "-a", "--reflink=auto", base, root], check=True)
    environment, directory = dict(values), "/"
    for step in stage.steps:
        if step.word in ("RUN", "COPY"):
            say(f"line {step.line}: {step.word} {step.text[:100]}")
        if step.word == "RUN":
            run_in(root, step.text, environment, directory, work)
        elif step.word == "COPY":
            copy_step(step, root, roots, directory)
        elif step.word == "WORKDIR":
            directory = step.text
            (root / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif step.word == "ENV":
            environment.update(part.split("=", 1) for part in shlex.split(step.text))
    return root


def install_from_tree(stage, tree, work):
    """Runs the install step of the build stage on an existing build tree. Later stages copy from the resulting root."""
    root = work / stage.name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    (step,) = [step for step in stage.steps if step.word == "RUN" and "cmake --install" in step.text]
    say(f"line {step.line}: RUN {step.text[:100]} (on {tree})")
    command = step.text.replace("--install build/release", f"--install {shlex.quote(str(tree))}")
    command = command.replace("DESTDIR=/out", f"DESTDIR={shlex.quote(str(root))}/out")
    subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL)
    return root


def make_image(name, work, build_tree=None, given=None):
    """Makes the root of stage `name`. `given`: build arguments."""
    work = pathlib.Path(work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    stages, global_arguments = dockerfile.parse(ROOT / "Dockerfile")
    needed, roots = [], {}

    def need(stage):
        if stage.name in needed:
            return
        for step in stage.steps:
            if step.word == "COPY" and step.text.startswith("--from="):
                need(stages[step.text.split()[0].removeprefix("--from=")])
        if stage.base in stages:
            need(stages[stage.base])
        needed.append(stage.name)

    need(stages[name])
    for stage in (stages[part] for part in needed):
        if stage.name == "build" and build_tree is not None:
            roots[stage.name] = install_from_tree(stage, build_tree, work)
            continue
        base = roots[stage.base] if stage.base in stages else make_base(work)
        values = dockerfile.arguments_of(stage, given or {}, global_arguments)
        roots[stage.name] = make_stage(stage, base, roots, work, values)
    return roots[name]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage")
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--build-tree", type=pathlib.Path)
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("image_root: needs root (debootstrap, chroot)")
    root = make_image(options.stage, options.work, options.build_tree, dict(part.split("=", 1) for part in options.build_arg))
    say(f"done: {root}")


if __name__ == "__main__":
    main()
