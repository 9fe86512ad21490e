"""Reads files that hold a secret, such as a token or a login, and refuses those that other users can read."""

from __future__ import annotations

import os
import stat

from ottla.server.refusals import SettingsRefusedError


def read_secret(path: str, what: str, bytes_max: int) -> bytes:
    """At most so many bytes of the file, without white space around them. Raises SettingsRefusedError, which calls the
    secret `what`."""
    try:
        with open(path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
                raise SettingsRefusedError(f"Other users can read {path}, {what}: set its mode to 0600.")
            return file.read(bytes_max).strip()
    except OSError as error:
        raise SettingsRefusedError(f"{path}, {what}, can't be read: {error.strerror or error}.") from None
