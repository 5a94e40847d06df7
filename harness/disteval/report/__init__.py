"""What was judged and measured, as one page that needs nothing else."""
