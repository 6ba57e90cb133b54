"""The front end: captures Python into graphs by stepping bytecode, independently of TorchDynamo."""
