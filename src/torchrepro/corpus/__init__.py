"""A directory of bundles: sorted into buckets, replayed under one version of torch or two, and gated."""
