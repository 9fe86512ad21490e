"""Runs the command line: each noun has a file, and `serve` has a path of its own.

It prints a failure as one plain sentence on stderr, with an exit code that is not 0. `serve` must start a node in a
fraction of a second, so it is parsed before anything heavy is imported.

Invariant: no traceback is printed, unless OTTLA_TRACEBACK is set.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from ottla.escaping import visible_lines

DONE, FAILED, NOT_UNDERSTOOD, INTERRUPTED = 0, 1, 2, 130
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failure, 2 invalid arguments, 130 interrupted."""
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
        abandon_output()  # the reader (head, less) has exited: there is nothing to report
        return DONE
    except Exception as error:
        if os.environ.get("OTTLA_TRACEBACK"):
            raise
        abandon_output()
        tell(unforeseen(error))
        return FAILED


def interrupt(number: int, frame: object) -> None:
    """SIGTERM ends a command as SIGINT does: the command leaves its group and flushes its output."""
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    import signal

    from ottla.cli.output import CommandError

    signal.signal(signal.SIGTERM, interrupt)
    try:
        code = parsed(arguments)
        if sys.stdout is not None:  # None if the parent closed it
            sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # click ends this way on a broken pipe
            raise ended.__context__ from None
        raise
    except CommandError as failure:
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
    """Run the command that the arguments name, and return its result. Only that command's noun is loaded: loading all
    nouns takes three times as long."""
    from ottla.cli.nouns import HELP, NOUNS

    if arguments and arguments[0] in NOUNS:
        from importlib import import_module

        from ottla.cli.runnable import runnable

        noun = import_module(f"ottla.cli.{arguments[0].replace('-', '_')}")
        name = f"ottla {arguments[0]}"
        return runnable(noun.app)(args=arguments[1:], prog_name=name, standalone_mode=False, **HELP)
    from ottla.cli.tree import command

    return command()(args=arguments, prog_name="ottla", standalone_mode=False)


def tell(sentence: str) -> None:
    """Print an error on standard error, ignoring a closed one."""
    with suppress(OSError, ValueError):
        print(f"ottla: {visible_lines(sentence)}", file=sys.stderr, flush=True)


def unforeseen(error: Exception) -> str:
    """A sentence for an unexpected error."""
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
    """Discard the buffer of standard output: otherwise the interpreter would try to write it again at exit."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
