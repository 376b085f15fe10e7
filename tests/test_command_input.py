"""What a command line, a flag file or a config file may hold, and what a terminal may refuse."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_command import fresh
from test_config import TINY, config

from experiments import cli, config_source
from lm.errors import BadInput
from lm.json_text import loads

ROOT = Path(__file__).parents[1]
DEEP = "[" * 100_000


def said(e: pytest.ExceptionInfo) -> str:
    text = str(e.value)
    assert "\n" not in text and len(text) < 600, text
    return text


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"\x7fELF\xff\xfe\x00", "flags is not text: a flag file has one --name=value a line"),
        (b"\x00\x01", "unexpected argument"),
        (b"hello\n", "unexpected argument 'hello'"),
        (None, "Unable to open flagfile"),
    ],
    ids=["binary", "zeros", "a word", "absent"],
)
def test_a_flag_file_that_is_none_is_told(tmp_path, content, sentence):
    path = tmp_path / "flags"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput) as e:
        config(f"--config={TINY}", f"--flagfile={path}")
    assert re.search(sentence, said(e)), said(e)


@pytest.mark.parametrize("args", [["--flagfile"], ["--flagfile="], ["-flagfile="]])
def test_a_flag_file_without_a_name_is_told(args):
    with pytest.raises(BadInput, match="^--flagfile names no file: write --flagfile=FILE$"):
        config(f"--config={TINY}", *args)


@pytest.mark.parametrize(
    "given, meant",
    [
        ("--cnofig=x", "did you mean --config?"),
        ("--cnofig.model.d_model=3", "did you mean --config.model.d_model?"),
        ("--zzz", "--help lists them"),
    ],
)
def test_a_mistyped_flag_gets_the_nearest_name(given, meant):
    with pytest.raises(BadInput) as e:
        config(f"--config={TINY}", given)
    assert said(e) == f"{given.partition('=')[0]} is no flag of this command: {meant}"


@pytest.mark.parametrize(
    "name, value",
    [("a", float("inf")), ("a", float("nan")), ("a", 10**30), ("a", -(10**5000))],
    ids=["inf", "nan", "large", "huge"],
)
def test_a_number_of_a_flag_is_finite_and_bounded(name, value):
    with pytest.raises(BadInput, match=f"^--{name} is "):
        cli._check_number(name, value)
    for fine in (1e300, 2**63 - 1, -5, True, None, "inf"):
        cli._check_number(name, fine)


HEAD = "from lm.config import default_config as get_config\n"


@pytest.mark.parametrize(
    "name, text, sentence",
    [
        ("deep.json", DEEP, "deep.json is not valid JSON .it is nested too deeply"),
        ("bytes.json", b"\xff\xfe{}", "bytes.json is not valid JSON"),
        ("exit.py", "import sys\nsys.exit(3)", "exit.py cannot be used: SystemExit: 3"),
        ("leave.py", "def get_config():\n    exit()", "leave.py cannot be used: SystemExit"),
        ("deep.py", "def get_config():\n    return get_config()", "cannot be used: RecursionError"),
        ("long" * 80 + ".py", None, "too long|no config file"),
    ],
)
def test_a_config_file_that_cannot_be_used_is_told(tmp_path, name, text, sentence):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput) as e, cli._one_sentence():
        config(f"--config={path}")
    assert re.search(sentence, said(e)), said(e)


@pytest.mark.parametrize(
    "points, sentence",
    [
        ("[{3: 1}]", "the sweep names the field 3: write it as text"),
        ("[{None: 1}]", "the sweep names the field None"),
        ("[{'train.steps': 10**5000}]", "train.steps is larger than 1e20"),
        ("[{'train.steps': 1, 'train.flops': 1.0}]", "two budgets are set by the sweep"),
    ],
)
def test_a_point_of_a_sweep_that_cannot_be_meant_is_told(tmp_path, points, sentence):
    path = tmp_path / "sweep.py"
    path.write_text(f"{HEAD}def get_sweep():\n    return {points}\n")
    with pytest.raises(BadInput) as e:
        source = source_of(path)
        source.config(source.points[0])
    assert re.search(sentence, said(e)), said(e)


def source_of(path) -> config_source.ConfigSource:
    from absl import flags
    from absl.testing import flagsaver

    with flagsaver.flagsaver():
        flags.FLAGS.unparse_flags()
        cli._parse(["command", f"--config={path}"])
        return config_source.from_flags()


def test_the_last_word_on_a_budget_counts():
    steps, flops, none = (f"--config.train.{x}" for x in ("steps=5", "flops=1e9", "steps=none"))
    for args in ([steps, flops, none], [steps, none, flops], [none, flops]):
        t = config(f"--config={TINY}", *args).train
        assert (t.steps, t.flops) == (None, 1e9)
    with pytest.raises(BadInput, match="two budgets are set by the command line"):
        config(f"--config={TINY}", none, steps, flops)


@pytest.mark.parametrize("text", ["((" * 500, "{[]: 1}", "(" * 10_000 + ")" * 10_000, "1 +"])
def test_a_list_that_is_none_is_told(text):
    with pytest.raises(BadInput, match="train.batch_growth in the command line must be a list"):
        config(f"--config={TINY}", f"--config.train.batch_growth={text}")


def test_json_of_others_is_read_or_refused():
    assert loads(b'{"a": [1.5, null]}') == {"a": [1.5, None]}
    for text in (DEEP, "{" * 3, b"\xff"):
        with pytest.raises(ValueError):
            loads(text)


# Terminals: each is a process of its own, which imports next to nothing.


def started(body: str, *shell: str, **env: str) -> subprocess.CompletedProcess:
    code = f'"""doc"""\nfrom experiments import cli\ndef main():\n    {body}\ncli.run(main)\n'
    line = " ".join(["exec", '"$@"', *shell])
    argv = ["bash", "-c", line, "bash", sys.executable, "-c", code]
    unset = ("PYTHONIOENCODING", "PYTHONUNBUFFERED")
    env = {k: v for k, v in os.environ.items() if k not in unset} | env
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env=env)


@pytest.mark.parametrize(
    "body, code, sentence",
    [
        ("print('x' * 9)", 1, "No space left on device"),
        ("print('x' * 99999)", 1, "No space left on device"),
        ("print('x'); raise cli.BadInput('it is wrong')", 2, "it is wrong"),
    ],
)
def test_an_output_without_room_is_one_sentence(body, code, sentence):
    done = started(body, ">/dev/full")
    assert done.returncode == code and sentence in done.stderr, done
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_what_a_terminal_cannot_show_is_replaced():
    done = started("print('caf\\u00e9 \\u65e5')", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "caf\\xe9 \\u65e5\n", "")


@pytest.mark.parametrize(
    "error, kind, sentence",
    [
        ("OSError(28, 'No space left on device', '/a')", "CannotFinish", "device: /a; make room"),
        ("OSError(36, 'File name too long', '/a')", "BadInput", "long: /a cannot be used; choose"),
        ("PermissionError(13, 'Permission denied', '/a')", "BadInput", "denied: /a cannot be used"),
        ("MemoryError()", "CannotFinish", "out of memory .more was asked for than there is"),
        ("RuntimeError('RESOURCE_EXHAUSTED: 9 bytes')", "CannotFinish", "out of memory .RESOURCE"),
        ("OSError(9, 'Bad file descriptor')", "OSError", "Bad file"),
        ("RuntimeError('of our own')", "RuntimeError", "of our own"),
        ("FileNotFoundError(2, 'No such file', '/a')", "FileNotFoundError", "No such file"),
    ],
)
def test_errors_of_the_machine_become_sentences_and_those_of_ours_stay(error, kind, sentence):
    with pytest.raises(Exception, match=sentence) as e, cli._one_sentence():
        raise eval(error)
    assert type(e.value).__name__ == kind


@pytest.mark.parametrize("argv0", ["-m", "/usr/bin/isoflop-train"])
def test_an_interrupt_while_a_command_imports_shows_no_traceback(argv0):
    code = "import sys; sys.argv[0] = {!r}; import experiments; raise {}"
    for error, status, shown in (("KeyboardInterrupt", -2, False), ("ValueError", 1, True)):
        argv = [sys.executable, "-c", code.format(argv0, error)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, "Traceback" in done.stderr) == (status, shown), done


def test_help_says_where_the_fields_are_and_fields_are_there():
    from absl import flags

    with fresh("train") as train:
        text = " ".join(cli._help(train.__doc__ or "").split())
    assert "config" in flags.FLAGS
    named = re.search(r"with their defaults: (\S+config_fields.py)", text)
    assert named and "class OptimConfig" in (ROOT / named[1]).read_text()
    assert "config.json in its work folder" in text


def test_extras_are_installed_as_the_readme_says():
    from lm.errors import installed_by

    assert installed_by("zstd") == "pip install -e '.[zstd]' in the checkout"
    assert "`pip install -e '.[" in " ".join((ROOT / "README.md").read_text().split())
    listed = json.dumps((ROOT / "pyproject.toml").read_text())
    for path in (p for top in ("lm", "experiments", "launch") for p in ROOT.glob(f"{top}/**/*.py")):
        text = path.read_text()
        assert "isoflop[" not in text, path
        for extra in re.findall(r"installed_by\('(\w+)'\)", text):
            assert f"{extra} = [" in listed
