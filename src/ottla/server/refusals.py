"""Defines how a server says that it can't start."""


class ServeRefusedError(Exception):
    """The server can't start; the text is one plain sentence."""


class SettingsRefusedError(ServeRefusedError):
    """The server can't start, and a retry would not help: the operator has to change something."""
