"""The command line: one noun a file, and `serve` on a path of its own.

Knows: which nouns there are, and how a failure is told: one plain sentence on stderr and an exit code that is not 0.
`serve` must have a node up in a fraction of a second, so it is parsed before anything heavy is imported.
"""

from __future__ import annotations

import sys


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
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) has gone: nothing to tell, nobody to tell it
        return 0


def interrupt(number: int, frame: object) -> None:
    """SIGTERM ends a command as SIGINT does: it leaves its group and flushes what it holds."""
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    import signal

    from ottla.cli.output import Failure
    from ottla.cli.tree import app, not_understood

    signal.signal(signal.SIGTERM, interrupt)
    try:
        code = app(args=arguments, prog_name="ottla", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except Failure as failure:
        print(f"ottla: {failure}", file=sys.stderr)
        return 1
    except Exception as error:
        sentence = not_understood(error)
        if sentence is None:
            raise
        print(f"ottla: {sentence}", file=sys.stderr)
        return 2
