"""The contract suite for offload drivers: subclass :class:`afterglow.testing.offloaders.OffloaderContract`.

Needs the extra ``pulsar-afterglow[testing]``. The test kit of this project itself is in ``tests/support/``.
"""

from importlib.util import find_spec

from afterglow.errors import MissingDependency

if find_spec("pytest") is None:
    raise MissingDependency.of_extra("the contract suite needs pytest", "testing")
