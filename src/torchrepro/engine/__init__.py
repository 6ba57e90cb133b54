"""Who answers whether a repro fails, and how: each candidate in a process of its own."""
