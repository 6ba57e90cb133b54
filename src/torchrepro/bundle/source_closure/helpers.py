"""Functions that a source closure brings along where it makes objects without their constructors."""

from __future__ import annotations

HELPERS = {
    "_instance": '''\
def _instance(class_, attributes):
    """An object as it was: its constructor does not run."""
    made = class_.__new__(class_)
    made.__dict__.update(attributes)
    return made
''',
    "_module": '''\
def _module(class_, attributes, parameters={}, buffers={}, modules={}, temporary=()):
    """A torch module as it was: the constructor of its class does not run."""
    made = class_.__new__(class_)
    torch.nn.Module.__init__(made)
    made.__dict__.update(attributes)
    made._parameters.update(parameters)
    made._buffers.update(buffers)
    made._modules.update(modules)
    made._non_persistent_buffers_set.update(temporary)
    return made
''',
}
"""Text by name. `_tensor`, which finds a tensor that is kept beside the text, is bound by who runs it."""

NAMES = (*HELPERS, "_tensor")
