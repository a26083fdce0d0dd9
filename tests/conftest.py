"""Settings of all tests."""

import torch
from hypothesis import settings

# The first call into torch can take longer than hypothesis's default deadline.
settings.register_profile("lavps", deadline=None)
settings.load_profile("lavps")
torch.set_num_threads(1)
