"""Exchange of repros with other tools: PyTorch's own artefacts in, runnable files for its tooling out."""
