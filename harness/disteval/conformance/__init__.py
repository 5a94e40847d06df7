"""The check that proves a backend right, or shows the smallest example that fails."""
