"""A certificate authority for tests, made with the openssl program."""
import os
import pathlib
import subprocess


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    def __init__(self, folder, name="ca"):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate = self.folder / f"{name}.crt"
        self.key = self.folder / f"{name}.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", 30, "-subj", f"/CN={name}",
                "-addext", "basicConstraints=critical,CA:TRUE", "-keyout", self.key, "-out", self.certificate)
        self.issued = 0

    def issue(self, name, names, expired=False, days=7):
        """Returns (certificate, key). `names` has the form "DNS:localhost,IP:127.0.0.1"."""
        base = self.folder / name
        certificate, key, request = (base.with_suffix(end) for end in (".crt", ".key", ".csr"))
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}", "-keyout", key,
                "-out", request)
        self.issued += 1
        work = self.folder / f"issue{self.issued}"
        work.mkdir()
        (work / "index").touch()
        (work / "config").write_text(
            "[ca]\ndefault_ca=here\n[here]\n"
            f"database={work}/index\nnew_certs_dir={work}\nrand_serial=yes\ndefault_md=sha256\npolicy=any\nx509_extensions=leaf\n"
            f"unique_subject=no\n[any]\ncommonName=supplied\n[leaf]\nsubjectAltName={names}\nbasicConstraints=CA:FALSE\n")
        dates = ["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"] if expired else ["-days", days]
        openssl("ca", "-batch", "-config", work / "config", "-cert", self.certificate, "-keyfile", self.key, "-in", request, "-out",
                certificate, "-notext", *dates)
        return certificate, key


def put_in_place(folder, certificate, key):
    """Replaces both files at once by renaming over the symbolic link `folder`/now, as Kubernetes does."""
    folder = pathlib.Path(folder)
    version = folder / f"version{len(list(folder.glob('version*')))}"
    version.mkdir(parents=True)
    (version / "tls.crt").write_bytes(pathlib.Path(certificate).read_bytes())
    (version / "tls.key").write_bytes(pathlib.Path(key).read_bytes())
    link = folder / "link"
    link.symlink_to(version)
    os.replace(link, folder / "now")
    return folder / "now/tls.crt", folder / "now/tls.key"
