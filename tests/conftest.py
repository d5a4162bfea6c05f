"""Settings and fixtures that all tests share."""

import os
import signal

import pytest
from hypothesis import settings

# Files of tests run side by side, one per core: more threads of torch and NumPy would be in each
# other's way. They read this when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Derandomised, so that a commit passes or fails the same way every time.
settings.register_profile("mchindex", deadline=None, derandomize=True, database=None)
settings.load_profile("mchindex")

# A background job of a shell script ignores SIGINT, and the processes that tests start and
# interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with weights of the small network, so that it need not be trained."""
    import torch  # here, because most tests do not need it

    from mchindex.models.backbones import SmallNet

    path = tmp_path_factory.mktemp("weights") / "small.pth"
    torch.manual_seed(0)
    torch.save(SmallNet(32).state_dict(), path)
    return str(path)
