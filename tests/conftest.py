"""Settings of all tests."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from support.benchmarks import assets  # noqa: F401 - a fixture of several folders
from support.lpips_weights import weights  # noqa: F401 - a fixture of several folders

# The first call into torch can take longer than hypothesis's default deadline.
settings.register_profile("lavps", deadline=None)
settings.load_profile("lavps")
torch.set_num_threads(1)

# Folders of the inner loop: `pytest -m core` runs them in a few minutes.
CORE = (
    "nn",
    "priors",
    "operators",
    "guidance",
    "samplers",
    "evaluation",
    "oracle",
    "contracts",
    "tiling",
    "io",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the inner loop."""
    here = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(here).parts[0]
        long = any(item.get_closest_marker(name) for name in ("slow", "thorough", "timing"))
        if not long and (folder in CORE or item.path.parent == here):
            item.add_marker(pytest.mark.core)
