"""Commands, flags and settings that the README names are there; so are the console scripts."""

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from experiments.config_source import parse
from lm.config import field_type

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FENCED = re.findall(r"^```\w*\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
INLINE = re.findall(r"`([^`]+)`", re.sub(r"^```\w*\n.*?^```", "", README, flags=re.DOTALL | re.M))
CODE = [line for block in FENCED for line in block.splitlines()] + INLINE
COMMANDS = [" ".join(code.split()) for code in CODE if "python -m " in code]
GROUPS = "model|data|train|optim|precision|mesh|pipeline|checkpoint|eval|log"


def source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    return Path(spec.origin).read_text()


def flags(module: str) -> set[str]:
    defined = source(module) + source("experiments.config_source")
    return set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', defined))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one(command):
    words = shlex.split(command.split("python -m ", 1)[1])
    module, rest = words[0], words[1:]
    if module in ("pytest", "venv"):
        return
    if "--" in rest:  # launch.local: what it starts comes behind
        test_a_command_is_one(f"python -m {shlex.join(rest[rest.index('--') + 1 :])}")
        rest = rest[: rest.index("--")]
    assert "def run(" in source(module)
    for word in rest:
        name, _, value = word.removeprefix("--").partition("=")
        if name.startswith("config."):
            parse(name.removeprefix("config."), value, "README.md")
        else:
            assert name in {*flags(module), "help"}, word
        if name == "config" and value != "..." and value.startswith("experiments/"):
            assert (ROOT / value).is_file(), word


def test_settings_are_fields():
    named = {key for code in INLINE for key in re.findall(rf"^({GROUPS})\.(\w+)", code)}
    assert len(named) > 30
    for group, field in named - {("train", "bin")}:  # a file of nanoGPT's
        field_type(f"{group}.{field}")


def test_console_scripts_are_the_commands():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    files = [p for top in ("experiments", "launch") for p in (ROOT / top).glob("*.py")]
    commands = [p for p in files if '__name__ == "__main__"' in p.read_text()]
    assert scripts == {f"isoflop-{p.stem}": f"{p.parent.name}.{p.stem}:run" for p in commands}
    for text in (p.read_text() for p in commands):  # --help prints the docstring and the flags
        assert text.startswith('"""') and "\ndef run(" in text and "cli.run(main" in text
