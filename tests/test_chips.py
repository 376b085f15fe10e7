"""The table of accelerators: units, and names that look alike."""

import pytest

from lm.chips import CHIPS, named, of_kind, peak_flops


@pytest.mark.parametrize("chip", CHIPS, ids=lambda c: c.name)
def test_rows_are_in_plausible_units_and_sourced(chip):
    assert 1e13 < chip.peaks["bfloat16"] < 1e16
    assert 5e11 < chip.hbm_bandwidth < 1e13
    assert 7e9 < chip.hbm_limit < 3e11
    assert 1e9 < (chip.slow_bandwidth or 1e10) < chip.link_bandwidth < 1e12
    assert 100 < (chip.watts or 200) < 1500
    assert (chip.watts is None) == (chip.watts_are == "not published")
    assert chip.links in (1, 4, 6) and (chip.links == 1) == (chip.ring == 0)
    assert all(source.startswith("https://") for source in chip.sources) and chip.sources
    # An eight-bit product is never slower than a sixteen-bit one, nor float32 faster.
    assert chip.peaks["float32"] <= chip.peaks["bfloat16"]
    assert min(chip.peaks.get(d, 1e18) for d in ("int8", "float8")) >= chip.peaks["bfloat16"]


def test_names_are_unique_and_compared_whole():
    kinds = [kind for chip in CHIPS for kind in chip.kinds]
    assert len(set(kinds)) == len(kinds) and len({c.name for c in CHIPS}) == len(CHIPS)
    assert of_kind("NVIDIA H100 PCIe") is named("h100_pcie")
    assert peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert peak_flops("NVIDIA H100 PCIe", "bfloat16") == 756e12
    for unknown in ("NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H100", "TPU v5 litepod", "cpu"):
        assert peak_flops(unknown, "bfloat16") is None, unknown
    assert named("v9") is None


def test_peaks_are_of_a_device_as_jax_shows_it():
    assert peak_flops("TPU v3", "bfloat16") == 123e12 / 2  # a device is one of two cores
    assert peak_flops("TPU v4", "bfloat16") == 275e12
    assert peak_flops("TPU v5 lite", "bfloat16") == 197e12
    assert peak_flops("TPU v5", "bfloat16") == peak_flops("TPU v5p", "bfloat16") == 459e12
    assert peak_flops("TPU v5 lite", "float16") is None
    assert peak_flops("TPU v5 lite", "float32") == 197e12  # bfloat16 passes by default
    assert peak_flops("NVIDIA H200", "float32") == 494e12  # TensorFloat-32 by default
