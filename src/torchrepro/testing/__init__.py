"""For test suites: `assert_same_models` for unittest, and a pytest plugin with the fixture `compiled_same`.

pytest loads the plugin in every suite, so importing this package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrepro.testing.same_models import ModelsDiffer as ModelsDiffer
    from torchrepro.testing.same_models import assert_same_models as assert_same_models

__all__ = ["ModelsDiffer", "assert_same_models"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchrepro.testing import same_models

    return getattr(same_models, name)
