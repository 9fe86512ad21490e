"""Makes certificates for tests, with openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path, name: str) -> Path:
    """A PEM file with a key and its certificate, which is its own authority; `name` is a host's name or address."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl")
    kind = "IP" if name[0].isdigit() else "DNS"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout key -out crt"
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={kind}:{name}"]
    subprocess.run([*words.split(), *subject], cwd=folder, check=True, capture_output=True)
    pem = folder / "pem"
    pem.write_text((folder / "key").read_text() + (folder / "crt").read_text())
    return pem
