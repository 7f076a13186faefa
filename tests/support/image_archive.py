"""Container images for tests, made without docker, as an archive in docker's format that containerd imports."""
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile

LIBRARIES = "usr/lib/x86_64-linux-gnu"  # where the loader searches without a configuration
USERS = "root:x:0:0:root:/:/sbin/nologin\nnibble:x:65532:65532:nibble:/:/sbin/nologin\n"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
PAUSE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


def libraries(program):
    """Paths of the shared libraries that a program loads, and of its loader, as ldd finds them."""
    said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    assert "not found" not in said, f"{program}: {said}"
    return re.findall(r"(?:=> |^\s)(/\S+) \(", said, re.MULTILINE)


def make_root(root, programs, without=None):
    """Makes the root of an image: the programs in /usr/local/bin, their libraries, users and authorities. Leaves out the
    libraries that the root `without` has: that of the image on which this one is based."""
    for folder in ("usr/local/bin", LIBRARIES, "lib64", "tmp", "etc/ssl/certs"):
        (root / folder).mkdir(parents=True)
    for program in programs:
        shutil.copy(program, root / "usr/local/bin")
        for library in map(pathlib.Path, libraries(program)):
            path = f"lib64/{library.name}" if library.name.startswith("ld-") else f"{LIBRARIES}/{library.name}"
            if not (root / path).exists() and not (without and (without / path).exists()):
                shutil.copy(library, root / path)
    (root / "etc/passwd").write_text(USERS)
    shutil.copy(pathlib.Path("/") / CERTIFICATES, root / CERTIFICATES)
    return root


def make_pause_root(root):
    """The root of the image that holds the namespaces of a pod."""
    root.mkdir(parents=True)
    subprocess.run(["gcc", "-static", "-O1", "-x", "c", "-", "-o", root / "pause"], input=PAUSE, text=True, check=True)
    return root


def add(archive, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def write(file, images):
    """Writes an archive. `images`: {name: (roots, command)}; each root is a layer on those before it. Images with the same
    root share its layer."""
    layers, manifest = {}, []
    with tarfile.open(file, "w") as archive:
        for name, (roots, command) in images.items():
            for root in roots:
                if root not in layers:
                    layers[root] = write_layer(archive, root, file.with_name("layer.tar"))
            config = json.dumps({
                "architecture": "amd64", "os": "linux", "config": {"Entrypoint": command},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layers[root]}" for root in roots]}}).encode()
            entry = f"{hashlib.sha256(config).hexdigest()}.json"
            add(archive, entry, config)
            manifest.append({"Config": entry, "RepoTags": [name], "Layers": [f"{layers[root]}.tar" for root in roots]})
        add(archive, "manifest.json", json.dumps(manifest).encode())


def write_layer(archive, root, file):
    """Returns the digest of the layer, which is written to `file` first, because its name in the archive has the digest."""
    with tarfile.open(file, "w") as layer:
        layer.add(root, arcname=".")
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    archive.add(file, arcname=f"{digest}.tar")
    os.remove(file)
    return digest
