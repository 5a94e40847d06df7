"""The asv benchmarks: one module a benchmark, one class a question; see docs/benchmarks.md."""
