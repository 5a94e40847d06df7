"""The asv benchmarks: one module for each subject and one class for each question."""
