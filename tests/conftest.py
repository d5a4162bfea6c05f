"""Settings that every test shares."""

import signal

import pytest
from hypothesis import settings

# Derandomised: the same commit gives the same verdict on every machine and every day.
settings.register_profile("mchindex", deadline=None, derandomize=True, database=None)
settings.load_profile("mchindex")

# What a script starts in the background ignores Ctrl-C, and so would the processes that tests start
# and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of weights for the small net, so that it need not be trained."""
    import torch  # here: most tests do without

    from mchindex.models.backbones import SmallNet

    path = tmp_path_factory.mktemp("weights") / "small.pth"
    torch.manual_seed(0)
    torch.save(SmallNet(32).state_dict(), path)
    return str(path)
