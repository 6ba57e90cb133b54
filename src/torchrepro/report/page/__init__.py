"""The report as one HTML page that is self-contained: no other file, no request."""
