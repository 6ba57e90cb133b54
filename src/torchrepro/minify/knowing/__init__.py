"""What is known of candidates: their key, whether they can run, and verdicts that outlive the process."""
