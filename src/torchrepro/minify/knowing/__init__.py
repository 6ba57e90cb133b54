"""What is known of candidates: whether they can run, and verdicts that outlive the process."""
