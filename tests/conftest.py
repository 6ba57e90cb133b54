"""One cache of compiled kernels for all tests, apart from the user's; one thread for each compile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hypothesis import HealthCheck, settings

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "tests"

os.environ["TORCHREPRO_CACHE_DIR"] = str(CACHE)
# Bundles that tests write are the user's own by a key of the tests.
os.environ["TORCHREPRO_CONFIG_DIR"] = str(CACHE / "config")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(CACHE / "inductor")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A busy machine is no bug of a test: the first example may wait for an import.
patient = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.register_profile("desk", patient)
# Chance finds bugs at a desk; in CI the same commit must give the same answer.
settings.register_profile("ci", patient, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
# Nothing here may reach for a model hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A shell that starts pytest in the background has these ignored, and programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
