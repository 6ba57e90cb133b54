"""Reports on a failure: an HTML page, text, JSON, and an issue that is ready to be filed."""
