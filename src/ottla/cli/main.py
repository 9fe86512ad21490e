"""Runs the command line: one noun a file, and `serve` on a path of its own.

Knows: which nouns there are, and how a failure is told: one plain sentence on stderr and an exit code that is not 0.
`serve` must have a node up in a fraction of a second, so it is parsed before anything heavy is imported.

Invariant: no traceback reaches a person, unless OTTLA_TRACEBACK is set.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from ottla.visible import visible_lines

DONE, FAILED, NOT_UNDERSTOOD, INTERRUPTED = 0, 1, 2, 130
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 could not be done, 2 not understood, 130 interrupted."""
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        if arguments[:1] == ["serve"]:
            from ottla.cli.serve import main as serve

            return serve(arguments[1:])
        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        abandon_output()  # the reader (head, less) has gone: nothing to tell, nobody to tell it
        return DONE
    except Exception as error:
        if os.environ.get("OTTLA_TRACEBACK"):
            raise
        abandon_output()
        tell(unforeseen(error))
        return FAILED


def interrupt(number: int, frame: object) -> None:
    """SIGTERM ends a command as SIGINT does: it leaves its group and flushes what it holds."""
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    import signal

    from ottla.cli.output import Failure

    signal.signal(signal.SIGTERM, interrupt)
    try:
        code = parsed(arguments)
        if sys.stdout is not None:  # closed by who started this
            sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # click's own way of ending then
            raise ended.__context__ from None
        raise
    except Failure as failure:
        tell(str(failure))
        return failure.code
    except Exception as error:
        from ottla.cli.tree import not_understood

        sentence = not_understood(error)
        if sentence is None:
            raise
        tell(sentence)
        return NOT_UNDERSTOOD


def parsed(arguments: list[str]) -> object:
    """Run what the arguments name, and return what it returned. Of a noun's commands the noun alone is loaded: loading
    all of them takes three times as long."""
    from ottla.cli.nouns import HELP, NOUNS

    if arguments and arguments[0] in NOUNS:
        from importlib import import_module

        from typer.main import get_command

        noun = import_module(f"ottla.cli.{arguments[0].replace('-', '_')}")
        name = f"ottla {arguments[0]}"
        return get_command(noun.app)(args=arguments[1:], prog_name=name, standalone_mode=False, **HELP)
    from ottla.cli.tree import command

    return command()(args=arguments, prog_name="ottla", standalone_mode=False)


def tell(sentence: str) -> None:
    """Say on standard error what went wrong; nobody may be there to read it."""
    with suppress(OSError, ValueError):
        print(f"ottla: {visible_lines(sentence)}", file=sys.stderr, flush=True)


def unforeseen(error: Exception) -> str:
    """A sentence for an error that no command has one for."""
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {why}."
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return f"The output cannot be written: {why}."
    return (
        f"This is a fault of Ottla's own: {type(error).__name__}: {why.rstrip('.')}. "
        "Run it again with OTTLA_TRACEBACK=1 in the environment and report what it says then."
    )


def abandon_output() -> None:
    """What is still in the buffer of standard output goes nowhere: the end of the process would try it again."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
