"""What every test shares: no test may depend on the caller's environment of models and hubs."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

HUB_VARIABLES = ("HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_TOKEN")


@pytest.fixture(autouse=True, scope="session")
def neutral_environment() -> None:
    """Settings of the developer's shell must not change what a test sees."""
    for name in HUB_VARIABLES:
        os.environ.pop(name, None)


settings.register_profile("voicepipe", deadline=None)  # a timed assertion is a benchmark
settings.load_profile("voicepipe")
