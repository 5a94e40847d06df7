"""The specification: each promise once, held to examples that Hypothesis draws."""
