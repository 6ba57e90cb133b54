"""Find the culprit of a failure: the stage, what is inside it, the graph, the op."""
