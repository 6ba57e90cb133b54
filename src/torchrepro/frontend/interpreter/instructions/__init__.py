"""What each instruction does. Importing the package fills the table."""

from torchrepro.frontend.interpreter.instructions import control, values, variables
from torchrepro.frontend.interpreter.instructions.table import INSTRUCTIONS

__all__ = ["INSTRUCTIONS", "control", "values", "variables"]
