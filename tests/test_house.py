"""The order of the house: what may import what, and what must stay light."""

import ast
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [p for top in ("lm", "experiments", "launch") for p in (ROOT / top).rglob("*.py")]


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


def test_the_library_imports_neither_entry_points_nor_launchers():
    bad = {
        (str(p.relative_to(ROOT)), name)
        for p in FILES
        if "lm" in p.relative_to(ROOT).parts[:1]
        for name in imports(p)
        if within(name, "experiments", "launch")
    }
    assert not bad


def test_laws_import_only_counting_errors_and_whole_files():
    allowed = ("lm.laws", "lm.budget", "lm.errors", "lm.config.ModelConfig", "lm.whole_file")
    files = list((ROOT / "lm" / "laws").rglob("*.py"))
    assert len(files) > 20
    bad = {
        (str(p.relative_to(ROOT)), name)
        for p in files
        for name in imports(p)
        if within(name, "lm") and not within(name, *allowed)
    }
    assert not bad


def test_only_the_layout_spells_mesh_axes_and_only_the_transformer_knows_flax():
    for path in FILES:
        relative = path.relative_to(ROOT).as_posix()
        names = imports(path)
        if relative != "lm/layout.py":
            assert not any(within(n, "jax.sharding.PartitionSpec") for n in names), relative
        if relative != "lm/model/transformer.py":
            assert not any(within(n, "flax") for n in names), relative


@pytest.mark.parametrize("module", ["lm.laws.request", "lm.laws.plan", "experiments.plan"])
def test_the_law_half_starts_without_jax(module):
    heavy = "{'jax', 'flax', 'orbax', 'grain'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_training_imports_what_is_heavy_only_where_it_is_used():
    code = (
        "import sys, lm.train.run, lm.sweep.pool; print(sorted("
        "{'orbax.checkpoint', 'grain', 'pandas', 'matplotlib', 'tqdm', 'tensorboard', 'wandb'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_tests_stay_on_this_machine():
    with pytest.raises(ConnectionRefusedError, match="stay on this machine"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)  # nobody's, by RFC 5737
