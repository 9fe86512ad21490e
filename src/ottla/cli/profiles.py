"""Reads profiles: client properties that a user has given a name, one file each.

    $XDG_CONFIG_HOME/ottla/profiles/NAME.properties    (default: ~/.config/ottla/profiles)

A profile with a secret must be readable by its owner only.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from ottla.cli.output import CommandError, UsageError
from ottla.cli.properties import read_properties

SUFFIX = ".properties"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_SECRET = re.compile(
    r".*(password|secret)|sasl\.jaas\.config|ssl\.key\.pem|ssl\.keystore\.key|.*user\.info|.*auth\.token"
)
"""Properties whose values are secrets, in librdkafka's words and Java's."""


def folder() -> Path:
    """The directory of this user's profiles."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".config"
    return base / "ottla" / "profiles"


def names() -> list[str]:
    """The names of all profiles."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder().glob(f"*{SUFFIX}"))


def complete_profiles(incomplete: str) -> list[str]:
    """Names of profiles for shell completion."""
    return [name for name in names() if name.startswith(incomplete)]


def read_profile(name: str) -> dict[str, str]:
    """The client properties of a profile. Raises CommandError, also if other users can read its secrets."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a profile: use letters, digits, dots, hyphens and underscores.")
    path = folder() / f"{name}{SUFFIX}"
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        known = f" The profiles there: {', '.join(names())}." if names() else ""
        raise CommandError(f"There is no profile {name}: {path} is missing.{known}") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.") from None
    found = read_properties(str(path))
    secret = next((key for key in found if _SECRET.fullmatch(key)), None)
    if secret is not None and mode & (stat.S_IRGRP | stat.S_IROTH):
        raise CommandError(f"Other users can read {path}, which has {secret}: `chmod 600 {path}` makes it yours alone.")
    return found
