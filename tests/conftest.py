import pytest
import torch
from hypothesis import HealthCheck, settings

# Tests run beside each other: one thread each is faster than two that fight. Nothing is gated on seconds.
torch.set_num_threads(1)
settings.register_profile("ordnet", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("ordnet")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """What the product remembers between runs must not reach the tester's home, nor come from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
