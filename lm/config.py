"""The settings of a run, from a config file's ConfigDict to frozen, checked dataclasses, once."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lm import typed
from lm.config_checks import check
from lm.config_fields import (
    BUDGETS,
    COMPUTE,
    FFNS,
    FUSED_ATTENTION,
    GATED_FFNS,
    OPTIMIZERS,
    PIPELINE_SCHEDULES,
    CheckpointConfig,
    Config,
    DataConfig,
    EvalConfig,
    LogConfig,
    MeshConfig,
    ModelConfig,
    OptimConfig,
    PipelineConfig,
    PrecisionConfig,
    TrainConfig,
)

__all__ = [
    "BUDGETS",
    "COMPUTE",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "EvalConfig",
    "FFNS",
    "FUSED_ATTENTION",
    "GATED_FFNS",
    "LogConfig",
    "MeshConfig",
    "ModelConfig",
    "OPTIMIZERS",
    "OptimConfig",
    "PIPELINE_SCHEDULES",
    "PipelineConfig",
    "PrecisionConfig",
    "TrainConfig",
    "default_config",
    "field_type",
    "freeze",
    "to_dict",
]


def default_config():
    """Returns a complete, locked ConfigDict with the defaults of lm/config_fields.py."""
    from ml_collections import ConfigDict

    # Types are checked by `freeze`, which also accepts 1e6 for an integer and none where optional.
    config = ConfigDict(to_dict(Config()), type_safe=False)
    return config.lock()


def to_dict(config: Config) -> dict[str, Any]:
    """Returns the config as nested dicts of plain values, ready for JSON."""
    return {k: _plain(v) for k, v in dataclasses.asdict(config).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def freeze(config: Mapping[str, Any], where: str = "the config") -> Config:
    """Returns the checked, frozen Config; raises BadInput naming the field."""
    frozen: Config = typed.build(Config, config, where)
    check(frozen)
    return frozen


def field_type(key: str) -> Any:
    """Returns the type of a dotted field; raises BadInput with the nearest name for a typo."""
    return typed.field_type(Config, key)
