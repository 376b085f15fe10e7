"""Where a config comes from, what is refused and how it is said."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import cli, config_source
from lm.config import Config, TrainConfig, default_config, freeze, to_dict
from lm.errors import BadInput

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "experiments" / "configs").rglob("[!_]*.py"))
TINY = str(ROOT / "experiments" / "configs" / "tiny.py")


def config(*args: str) -> Config:
    """The config of a command started with these arguments."""
    with flagsaver.flagsaver():
        flags.FLAGS.unparse_flags()
        cli._parse(["command", *args])
        return config_source.from_flags().config()


def changed(**fields) -> dict:
    """A complete config as plain values, with fields changed; a_b stands for a.b."""
    values = to_dict(Config(train=TrainConfig(steps=10)))
    for name, value in fields.items():
        group, _, leaf = name.partition("_")
        if isinstance(values.get(group), dict):
            values[group][leaf] = value
        else:
            values[name] = value
    return values


# Precedence


def test_command_line_beats_flag_file_beats_config_file(tmp_path):
    flag_file = tmp_path / "flags"
    flag_file.write_text("--config.model.d_model=64\n--config.model.n_layers=3\n--config.seed=5\n")
    named, file = f"--config={TINY}", f"--flagfile={flag_file}"
    line = "--config.model.d_model=48"
    for order in ([named, file, line], [line, file, named], [file, line, named]):
        c = config(*order)
        assert (c.model.d_model, c.model.n_layers, c.seed) == (48, 3, 5)
        assert c.model.max_length == 32  # the file's, which nothing changed
    assert config(named, line, "--config.model.d_model=16", file).model.d_model == 16
    assert config(named, "--flagfile", str(flag_file)).seed == 5


def test_later_beats_earlier_within_flag_files(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("# a comment\n--config.seed=1\n")
    two.write_text(f"--config.seed=2\n--config={TINY}\n")
    assert config(f"--flagfile={one}", f"--flagfile={two}").seed == 2
    assert config(f"--flagfile={two}", f"--flagfile={one}").seed == 1


@pytest.mark.parametrize(
    "args, group, field, value",
    [
        (["--config.train.batch_size=1e1"], "train", "batch_size", 10),
        (["--config.train.n_tokens=1e6"], "train", "n_tokens", 1_000_000),
        (["--config.train.flops=3e9"], "train", "flops", 3e9),
        (["--config.optim.clip_norm=none"], "optim", "clip_norm", None),
        (["--config.optim.clip_norm=2"], "optim", "clip_norm", 2.0),
        (["--config.checkpoint.every=None"], "checkpoint", "every", None),
        (["--config.model.use_bias"], "model", "use_bias", True),
        (["--config.model.use_bias", "--noconfig.model.use_bias"], "model", "use_bias", False),
        (["--config.model.use_bias=false"], "model", "use_bias", False),
        (["--config.model.n_layers", "5"], "model", "n_layers", 5),
        (["--config.data.path=/a=b.txt"], "data", "path", "/a=b.txt"),
        (["--config.data.path=none"], "data", "path", None),
        (["--config.mesh.data", "-1"], "mesh", "data", -1),
        (
            ["--config.train.batch_growth=((1e3, 16), (2000, 32.0))"],
            "train",
            "batch_growth",
            ((1000, 16), (2000, 32)),
        ),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_values_take_the_type_of_their_field(args, group, field, value):
    got = getattr(getattr(config(f"--config={TINY}", *args), group), field)
    assert got == value and type(got) is type(value)
    if field == "batch_growth":
        assert {type(x) for pair in got for x in pair} == {int}


def test_a_budget_said_later_replaces_the_one_before(tmp_path):
    (tmp_path / "flags").write_text("--config.train.flops=1e9\n")
    named, file = f"--config={TINY}", f"--flagfile={tmp_path / 'flags'}"
    assert config(named).train.steps == 40
    t = config(named, file).train
    assert (t.steps, t.flops) == (None, 1e9)
    t = config(named, file, "--config.train.tokens_per_param=20").train
    assert (t.steps, t.flops, t.tokens_per_param) == (None, None, 20.0)
    t = config(named, "--config.train.steps=7", "--config.train.steps=8").train
    assert t.steps == 8


def test_two_budgets_in_one_source_are_refused(tmp_path):
    named = f"--config={TINY}"
    with pytest.raises(BadInput, match="two budgets are set by the command line"):
        config(named, "--config.train.steps=5", "--config.train.flops=1e9")
    (tmp_path / "flags").write_text("--config.train.steps=5\n--config.train.n_tokens=9\n")
    with pytest.raises(BadInput, match="two budgets are set by the flag file"):
        config(named, f"--flagfile={tmp_path / 'flags'}")
    both = tmp_path / "both.json"
    both.write_text(json.dumps(changed(train_n_tokens=5)))
    for more in ([], ["--config.train.flops=1e9"]):
        with pytest.raises(BadInput, match="set by .*both.json, train.n_tokens and train.steps"):
            config(f"--config={both}", *more)


# Files


def test_a_saved_config_repeats_itself(tmp_path):
    saved = tmp_path / "config.json"
    c = config(
        f"--config={TINY}",
        "--config.optim.clip_norm=none",
        "--config.train.batch_growth=((99,16),)",
    )
    saved.write_text(json.dumps(to_dict(c) | {"provenance": {"jax": "0"}}))
    assert config(f"--config={saved}") == c
    assert config(f"--config={saved}", "--config.seed=3") == dataclasses.replace(c, seed=3)


def test_the_defaults_are_complete_and_come_back():
    values = default_config()
    values.train.steps = 1
    c = freeze(values)
    assert c == Config(train=TrainConfig(steps=1))
    assert freeze(to_dict(c)) == c
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_builds_with_every_point_of_its_sweep(path):
    with flagsaver.flagsaver():
        flags.FLAGS.unparse_flags()
        cli._parse(["command", f"--config={path}"])
        source = config_source.from_flags()
    configs = [source.config(), *map(source.config, source.points)]
    assert all(isinstance(c, Config) for c in configs)
    assert len({json.dumps(to_dict(c)) for c in configs[1:]}) == len(source.points)
    assert path.read_text().startswith('"""')


@pytest.mark.parametrize(
    "name, text, sentence",
    [
        ("absent.py", None, "there is no config file"),
        ("a.yaml", "x: 1", "neither .py nor .json"),
        ("broken.json", "{", "not valid JSON"),
        ("list.json", "[1]", "holds a list"),
        ("group.json", json.dumps(changed() | {"model": 3}), "model .*group.*3"),
        ("partial.json", "{}", "lacks the field"),
        ("typo.json", json.dumps(changed(model_n_layer=1)), "did you mean model.n_layers"),
        ("empty.py", "x = 1", "no get_config"),
        ("syntax.py", "def get_config(:", "cannot be used"),
        ("name.py", "def get_config():\n    return nothing", "cannot be used.*nothing"),
        ("number.py", "def get_config():\n    return 3", "get_config.*number.py returns 3"),
        (
            "sweep.py",
            "from lm.config import default_config as get_config\ndef get_sweep():\n    return {}",
            "get_sweep.*sweep.py returns {}: return a list",
        ),
        (
            "field.py",
            "from lm.config import default_config\n"
            "def get_config():\n    c = default_config()\n    c.model.n_layer = 2\n    return c",
            "n_layers",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_said(tmp_path, name, text, sentence):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput) as e:
        config(f"--config={path}")
    assert re.search(sentence, str(e.value), re.DOTALL), str(e.value)
    assert str(path) in str(e.value)


# Sentences


@pytest.mark.parametrize(
    "args, sentence",
    [
        ([], "no config given"),
        (["--config.model.n_layer=2"], "did you mean model.n_layers"),
        (["--config.modle.n_layer=2"], "did you mean model.n_layers?"),
        (["--config.model.learning_rate=2"], "did you mean optim.learning_rate"),
        (["--config.n_layers=2"], "did you mean model.n_layers"),
        (["--config.model=2"], "'model' is a group"),
        (["--config.seed.x=2"], "no config field 'seed.x'"),
        (["--config.model.n_layers=2.5"], "model.n_layers .* whole number, not 2.5"),
        (["--config.model.n_layers=many"], "whole number, not 'many'"),
        (["--config.model.n_layers=none"], "whole number"),
        (["--config.model.d_ff=wide"], "whole number or none"),
        (["--config.model.use_bias=maybe"], "true or false"),
        (["--config.optim.learning_rate=fast"], "a number, not 'fast'"),
        (["--config.train.batch_growth=(("], "a list"),
        (["--config.train.steps=none"], "exactly one budget is needed .* none of them"),
        (["stray"], "unexpected argument 'stray'"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_mistake_on_the_command_line_is_said(args, sentence):
    named = [f"--config={TINY}"] if args else []
    with pytest.raises(BadInput, match=sentence):
        config(*named, *args)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"model_d_model": 30}, "d_model 30 is not divisible by model.n_heads 4"),
        ({"model_n_kv_heads": 3}, "n_heads 4 is not divisible by model.n_kv_heads 3"),
        ({"model_d_head": 5}, "head width 5 is odd"),
        ({"model_position": "sinusoidal", "model_d_model": 33, "model_d_head": 4}, "33 is odd"),
        ({"data_length": 300}, "data.length 300 is longer than model.max_length 256"),
        ({"pipeline_schedule": "1fb1"}, "pipeline.schedule is '1fb1' .did you mean 1f1b"),
        ({"train_accumulate": 3}, "batch_size 16 is not divisible by train.accumulate 3"),
        ({"train_flops": 1e9}, "train.steps and train.flops is set"),
        ({"train_steps": None}, "none of them is set"),
        ({"train_steps": 0}, "train.steps is 0: it must be greater than 0"),
        ({"model_n_layers": -1}, "model.n_layers is -1"),
        ({"optim_learning_rate": float("nan")}, "optim.learning_rate is nan"),
        ({"optim_clip_norm": 0}, "optim.clip_norm is 0"),
        ({"optim_weight_decay": -0.1}, "optim.weight_decay is -0.1"),
        ({"optim_eps": 0.0}, "optim.eps is 0"),
        ({"model_norm_eps": -1e-5}, "model.norm_eps is -1e-05"),
        ({"model_rope_original_length": 0}, "model.rope_original_length is 0"),
        ({"model_init_std": 0.0}, "model.init_std is 0"),
        ({"optim_muon_learning_rate": 0.0}, "optim.muon_learning_rate is 0"),
        ({"optim_final_fraction": 1.5}, "optim.final_fraction is 1.5: .* between 0 and 1"),
        ({"model_dropout": 1.0}, "model.dropout is 1.0: .* below 1"),
        ({"optim_b1": 1.0}, "optim.b1 is 1.0: .* below 1"),
        ({"optim_b2": 1.0}, "optim.b2 is 1.0: .* below 1"),
        ({"model_ffn": "swiglo"}, r"model.ffn is 'swiglo' \(did you mean swiglu\?\)"),
        ({"model_norm": "batch"}, "choose one of rmsnorm, layernorm"),
        ({"model_norm_position": "mid"}, "choose one of pre, post"),
        ({"model_position": "alibi"}, "choose one of rope"),
        ({"model_rope_scaling": "x"}, "choose one of none, linear"),
        ({"model_attention": "ring"}, "choose one of blocked, plain"),
        ({"optim_optimizer": "adam"}, "did you mean adamw"),
        ({"optim_schedule": "cos"}, "did you mean cosine"),
        ({"precision_compute": "float61"}, "choose one of float32, bfloat16"),
        ({"train_batch_growth_lr": "x"}, "choose one of sqrt"),
        (
            {"optim_schedule": "wsd", "optim_warmup_fraction": 0.6, "optim_decay_fraction": 0.5},
            "overlap",
        ),
        ({"train_batch_growth": [[100, 8]]}, "must grow"),
        ({"train_batch_growth": [[100, 32], [100, 64]]}, "must grow"),
        ({"train_batch_growth": [[100, 33]], "train_accumulate": 2}, "multiples of .* 2"),
        ({"train_batch_growth": [100]}, "pair"),
        ({"train_batch_growth": [[100, 20.5]]}, "whole numbers"),
        ({"mesh_data": -1, "mesh_model": -1}, "only one may be -1"),
        ({"mesh_data": 0}, "mesh.data is 0"),
        ({"train_reproducible": True, "precision_reduce": "bfloat16"}, "adds up in float32"),
        ({"seed": 1.5}, "seed .* whole number"),
        ({"sede": 1}, "did you mean seed"),
    ],
    ids=str,
)
def test_every_check_says_what_is_wrong(fields, sentence):
    with pytest.raises(BadInput) as e:
        freeze(changed(**fields))
    assert re.search(sentence, str(e.value)), str(e.value)
    assert "\n" not in str(e.value)


def test_every_name_that_is_allowed_has_its_entry():
    """A new kind is an entry in its dict and its name: neither goes without the other."""
    from lm import config_fields as names
    from lm import precision
    from lm.model import ffn
    from lm.optim import build, schedules
    from lm.pipeline import schedules as pipelines

    for allowed, entries in (
        (names.FFNS, ffn.ACTIVATIONS),
        (names.OPTIMIZERS, build.OPTIMIZERS),
        (names.SCHEDULES, schedules.SCHEDULES),
        (names.PIPELINE_SCHEDULES, pipelines.SCHEDULES),
        (names.MATMULS, precision.PRODUCTS),
    ):
        assert sorted(allowed) == sorted(entries)
    assert set(names.GATED_FFNS) < set(names.FFNS)


def test_what_the_checks_allow():
    assert freeze(changed(model_d_model=30, model_d_head=8)).model.head_dim == 8
    freeze(changed(model_position="none", model_d_head=5))
    freeze(changed(model_dropout=0.0, optim_weight_decay=0.0, optim_b1=0.0))
    freeze(changed(train_batch_growth=[[100, 32], [200, 48]], train_accumulate=16))
    assert freeze(changed(mesh_data=-1)).mesh.data == -1
    freeze(changed(optim_warmup_fraction=1.0, optim_final_fraction=1.0))


# Commands


def command(module: str, *args: str):
    return subprocess.run(
        [sys.executable, "-m", module, *args], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_help_teaches_and_a_mistake_exits_with_2():
    done = command("experiments.train", "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert "python -m experiments.train --config=" in done.stdout
    assert "--workdir" in done.stdout and "--config.GROUP.FIELD=VALUE" in done.stdout
    for args, sentence in (
        (["--wrokdir=x"], "wrokdir"),
        ([f"--config={TINY}", "--workdir=x", "--config.model.n_layer=1"], "model.n_layers?"),
        (["--flagfile=/nowhere/flags"], "/nowhere/flags"),
    ):
        done = command("experiments.train", *args)
        assert done.returncode == 2, done
        assert sentence in done.stderr and "Traceback" not in done.stderr
        assert done.stderr.count("\n") == 1 and done.stdout == ""
