"""Proves a backend right, or shows the smallest example that it gets wrong."""
