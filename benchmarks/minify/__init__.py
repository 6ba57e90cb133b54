"""`make bench-minify`: torchrepro's minifier and torch's own on the same failing programs, side by side."""
