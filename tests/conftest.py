"""What every test shares: Hypothesis profiles."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: the first example may have to compile the kernels. The blob reproduces a failure on another machine.
settings.register_profile("default", max_examples=60, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=5000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
