"""Reports of checks, evaluations, training and benchmarks, as one page that needs no network."""
