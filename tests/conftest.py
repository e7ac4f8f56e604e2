"""What all tests share: how property tests are run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# no test asserts an absolute time: machines are shared, and a slow example is no failure
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# what lands was judged by the same examples; new ones are looked for on developers' machines
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
