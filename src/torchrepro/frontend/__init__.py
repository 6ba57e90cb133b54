"""The front end: captures Python into graphs by interpreting bytecode, independently of TorchDynamo."""
