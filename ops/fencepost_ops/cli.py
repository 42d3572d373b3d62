"""The command line: one clear sentence on stderr for whatever goes wrong, and an exit code by its kind.

0 fine · 1 the answer is no (a violated invariant, an unsettled call, a conflict) · 2 usage · 3 a dependency
cannot be reached · 130 interrupted · 141 nobody reads the output any more. Passwords are never shown.
"""

import errno
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from fencepost import __version__
from fencepost.canonical import reveal
from fencepost.errors import FencepostError, UsageError
from fencepost.telemetry.logs import uncaught
from fencepost_ops.commands.named import COMMANDS, SAYS, SECTIONS
from fencepost_ops.commands.session import app_option, dsn_option, redis_option

INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
UNREACHABLE: Final = 3
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG})
_BUG: Final = 1


class CommandLine(click.Group):
    """The group of all commands, and the one place where errors become sentences and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands this installation has."""
        return [name for name, place in COMMANDS.items() if _exists(place.partition(":")[0])]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by what they are for. None is imported: all of them take two seconds."""
        names = self.list_commands(ctx)
        rest = tuple(name for name in names if not any(name in of for of in SECTIONS.values()))
        width = max(map(len, names))
        for title, members in {**SECTIONS, "More": rest}.items():
            commands = [click.Command(name, help=SAYS[name]) for name in members if name in names]
            limit = formatter.width - width - 6  # click's own measure
            rows = [(f"{one.name:<{width}}", one.get_short_help_str(limit)) for one in commands]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of this name; its module is imported now."""
        module, _, attribute = COMMANDS.get(cmd_name, "").partition(":")
        if not module or not _exists(module):
            return None
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; output nobody reads any more ends it quietly."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), 1
            )  # so that the interpreter's last flush finds a reader
            ctx.exit(BROKEN_PIPE)
        return answer

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit with the code that says what came of it."""
        if sys.stdout is None:  # closed by whoever started us
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as we live
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            _need_text(sys.argv[1:] if args is None else args)
            answer = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(2)
        except click.ClickException as error:
            sys.exit(_say(_sentence(error), error.exit_code))
        except click.Abort:
            sys.exit(_say("interrupted", INTERRUPTED))
        except FencepostError as error:
            sys.exit(_say(str(error), error.exit_code))
        except OSError as error:
            if error.errno not in _UNWRITABLE or error.filename is not None:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter's last flush
            sys.exit(_say(f"the output cannot be written: {error.strerror}", UNREACHABLE))
        except Exception as error:
            if "--traceback" in (args if args is not None else sys.argv[1:]):
                sys.excepthook = uncaught
                raise
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            sys.exit(
                _say(f"a bug in fencepost, or in the application ({what}); --traceback shows where", _BUG)
            )
        sys.exit(answer if isinstance(answer, int) else 0)


def _need_text(args: Sequence[str]) -> None:
    """UsageError for a word that is no UTF-8: neither Postgres nor a terminal takes half a character."""
    for word in args:
        if not word.isascii() and any("\ud800" <= char <= "\udfff" for char in word):
            raise UsageError(f"{word[:60]!a} is no text in UTF-8; write it, or name the file, otherwise")


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _sentence(error: click.ClickException) -> str:
    message = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        return f"{message[:1].lower()}{message[1:]} (see {context.command_path} --help)"
    return message


def _say(message: str, code: int) -> int:
    from fencepost.settings import redact

    try:
        # Lines that follow are set in: none of what was stored can begin one as if it were ours.
        whole = reveal(redact(message)).replace("\r", "\\r").replace("\n", "\n  ")
        click.echo(f"fencepost: {whole}", err=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return code


@click.group(cls=CommandLine, name="fencepost", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fencepost")
@click.option(
    "--traceback", is_flag=True, expose_value=False, help="Show where an unexpected error came from."
)
@dsn_option
@redis_option
@app_option
def main() -> None:
    """A worker fleet for agent runs: at most one effect per business intent.

    Settings come from FENCEPOST_DSN, FENCEPOST_REDIS_URL and FENCEPOST_APP. Exit codes: 0 fine, 1 the answer
    is no, 2 usage, 3 something cannot be reached.
    """
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # what became of a session, the command says


if __name__ == "__main__":
    main()
