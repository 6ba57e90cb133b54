"""What was found out about a failure, for people: a page, text, JSON, and an issue ready to be filed."""
