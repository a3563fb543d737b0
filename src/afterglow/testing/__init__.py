"""Contract suite for offload drivers, to be run by the tests of a driver.

Entry point: :class:`afterglow.testing.offloaders.OffloaderContract`, a class to derive from. Needs the extra
``pulsar-afterglow[testing]``. The test kit of Afterglow itself is in ``tests/support/``.
"""

from importlib.util import find_spec

from afterglow.errors import MissingDependency

if find_spec("pytest") is None:
    raise MissingDependency.of_extra("the contract suite needs pytest", "testing")
