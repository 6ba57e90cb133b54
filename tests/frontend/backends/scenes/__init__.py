"""Scenes by theme: small programs that a capture is easily wrong about."""
