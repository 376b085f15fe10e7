"""One way to start a command: flags, help, exit codes, one plain sentence for a user's mistake.

Exit codes: 0 done, 1 internal error, 2 bad input or flags, 3 diverged, 75 stopped by a signal
with the state saved.
"""

import contextlib
import errno
import io
import math
import os
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from absl import flags

from lm import config_fields, group, platform
from lm.errors import BadInput, CannotFinish, CannotSave, Diverged, Stalled, Stopped
from lm.whole_file import FULL

EXIT_CODES = {CannotSave: 1, CannotFinish: 1, BadInput: 2, Diverged: 3, Stopped: 75}
# Of a path that the user has to choose otherwise.
OF_USER = (
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS,
    errno.ELOOP,
)  # fmt: skip
FOLDERS = ("workdir", "out", "runs", "law", "ablation")  # flags that name a folder or a file
LARGEST = 2**63 - 1  # of a flag that is a whole number

# Values given as --config.group.field, in the order in which they win: flag files, command line.
config_overrides: list[tuple[str, list[tuple[str, str]]]] = []


def run(main: Callable[[], int | None], joins: bool = False, addresses: bool = False) -> None:
    """Parses sys.argv, calls main and exits with its code; never returns.

    joins: the command can be one of several processes that do it together (lm/group.py).
    addresses: its work folders may lie behind s3:// and the like (lm/train/mirror.py).
    """
    doc = sys.modules[main.__module__].__doc__ or ""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot show is no error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if {"--help", "-h", "-help", "--helpshort", "--helpfull", "-?"} & set(sys.argv[1:]):
            with _one_sentence():
                print(_help(doc), flush=True)
            sys.exit(0)
        platform.prepare()
        if joins:
            group.join()
        elif group.announced():
            raise BadInput("this command is not made for several processes: start it alone")
        group.together(lambda: _parse(sys.argv, addresses))
        platform.quiet_libraries()
        with _one_sentence():
            code = main() or 0
            print(end="", flush=True)
        sys.exit(code)
    except tuple(EXIT_CODES) as e:
        alike = isinstance(e, Diverged | Stopped)  # on every process: the first one tells it
        if str(e) and (group.first() or not alike):
            print(f"{_program()}: {e}", file=sys.stderr)
        code = next(code for kind, code in EXIT_CODES.items() if isinstance(e, kind))
        alone = group.size() > 1 and not isinstance(e, BadInput | Diverged | Stopped)
        if alone or isinstance(e, Stalled):  # leaving in order would wait for the writer
            group.end_alone(code)
        _end_output()
        sys.exit(code)
    except KeyboardInterrupt:
        print(f"{_program()}: interrupted; run the same command again to go on", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        _end_output()
        sys.stderr.close()  # the reader of our output went away; nothing is left to say to it
        sys.exit(1)


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    """A context in which what the machine or its files refuse is an error with a sentence: without
    room or memory CannotFinish, for a path that cannot be used BadInput. Others are our own."""
    try:
        yield
    except (BrokenPipeError, *EXIT_CODES):
        raise
    except OSError as e:
        where = "" if e.filename is None else f": {e.filename}"
        said = f"{e.strerror or e}{where}"
        if e.errno in FULL:
            raise CannotFinish(f"{said}; make room and run the same command again") from e
        if e.errno in OF_USER and where:
            raise BadInput(f"{said} cannot be used; choose another path") from e
        raise
    except (MemoryError, RuntimeError) as e:
        if not isinstance(e, MemoryError) and "RESOURCE_EXHAUSTED" not in str(e):
            raise
        reason = (str(e) or "more was asked for than there is").splitlines()[0]
        raise CannotFinish(
            f"out of memory ({reason[:200]}): ask for a smaller model, shorter sequences or fewer "
            "of them at a time"
        ) from e


def _end_output() -> None:
    """Writes what is left of our output; what cannot be written is dropped, or Python would try
    again at its end and complain."""
    try:
        print(end="", flush=True)
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _program() -> str:
    return sys.argv[0].rsplit("/", 1)[-1].removesuffix(".py").removeprefix("isoflop-")


def _parse(argv: list[str], addresses: bool = False) -> None:
    """Fills absl's flags and config_overrides; raises BadInput for what is no flag."""
    try:
        _parse_flags(argv)
    except flags.UnrecognizedFlagError as e:
        name, dot, field = e.flagname.partition(".")
        near = get_close_matches(name, _own_flags(), 1, 0.5)
        meant = f"did you mean --{near[0]}{dot}{field}?" if near else "--help lists them"
        raise BadInput(f"--{e.flagname} is no flag of this command: {meant}") from e
    except flags.Error as e:
        raise BadInput(" ".join(str(e).split())) from e
    for defined in flags.FLAGS.flags_by_module_dict().values():
        for flag in defined:
            _check_number(flag.name, flag.value)
            if flag.name in FOLDERS and not addresses:
                _check_here(flag.name, flag.value)


def _own_flags() -> dict[str, flags.Flag]:
    """Returns the flags of the command by name: absl's own are left out."""
    by_module = flags.FLAGS.flags_by_module_dict().items()
    return {f.name: f for module, of in by_module if not module.startswith("absl") for f in of}


def _check_here(name: str, value: Any) -> None:
    """Raises BadInput for an address in place of a folder on this machine."""
    if isinstance(value, str) and "://" in value:
        raise BadInput(
            f"--{name}={value} is an address, and this command works with files on this machine: "
            "copy them here (only experiments.train and experiments.generate take addresses)"
        )


def _check_number(name: str, value: Any) -> None:
    """Raises BadInput for a flag's number that no command can mean."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadInput(f"--{name} is {value}: a finite number is meant")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise BadInput(f"--{name} is larger than any whole number it can be: at most {LARGEST:,}")


def _parse_flags(argv: list[str]) -> None:
    flag_files, rest = _take_flag_files(argv[1:])
    try:
        from_files = flags.FLAGS.read_flags_from_files(flag_files, force_gnu=True)
    except UnicodeDecodeError as e:
        named = " ".join(flag_files)
        raise BadInput(f"{named} is not text: a flag file has one --name=value a line") from e
    file_args, file_overrides = _take_overrides(from_files)
    line_args, line_overrides = _take_overrides(rest)
    # Command line after flag files, wherever the flag file stood: later beats earlier.
    config_overrides[:] = [("the flag file", file_overrides), ("the command line", line_overrides)]
    if (file_overrides or line_overrides) and "config" not in flags.FLAGS:
        key = (file_overrides + line_overrides)[0][0]
        raise BadInput(
            f"--config.{key} changes nothing here, this command reads no config: remove it"
        )
    positional = flags.FLAGS([argv[0], *file_args, *line_args])[1:]
    if positional:
        raise BadInput(f"unexpected argument {positional[0]!r}: flags are written --name=value")


def _take_flag_files(args: list[str]) -> tuple[list[str], list[str]]:
    taken, rest, it = [], [], iter(args)
    for arg in it:
        if arg in ("--flagfile", "-flagfile"):
            taken.append(f"--flagfile={next(it, '')}")
        elif arg.startswith(("--flagfile=", "-flagfile=")):
            taken.append(f"-{arg}" if arg.startswith("-f") else arg)
        else:
            rest.append(arg)
    if "--flagfile=" in taken:
        raise BadInput("--flagfile names no file: write --flagfile=FILE")
    return taken, rest


def _take_overrides(args: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Splits --config.a.b=value, --config.a.b value, --config.flag and --noconfig.flag off."""
    rest: list[str] = []
    overrides: list[tuple[str, str]] = []
    it = iter(range(len(args)))
    for i in it:
        name, has_value, value = args[i].lstrip("-").partition("=")
        negated = name.startswith("noconfig.")
        if not args[i].startswith("-") or not (negated or name.startswith("config.")):
            rest.append(args[i])
            continue
        key = name.removeprefix("no").removeprefix("config.")
        if negated:
            value = "false"
        elif not has_value:
            following = args[i + 1] if i + 1 < len(args) else "--"
            if following.startswith("--"):
                value = "true"
            else:
                value = following
                next(it)
        overrides.append((key, value))
    return rest, overrides


def _shown(path: Path) -> str:
    """Returns a path as a person here would write it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _help(doc: str) -> str:
    lines = [doc.strip(), "", "flags:"]
    if "config" in flags.FLAGS:
        lines.append(
            "  --config.GROUP.FIELD=VALUE  changes one field of the config; `none` empties an\n"
            "      optional field. Command line beats --flagfile beats the config file.\n"
            f"      All fields, with their defaults: {_shown(Path(config_fields.__file__))};\n"
            "      those of a run, as they were used: config.json in its work folder."
        )
    for flag in _own_flags().values():
        default = "" if flag.default is None else f" (default {flag.default_as_str})"
        lines.append(f"  --{flag.name}  {flag.help}{default}")
    return "\n".join(lines)
