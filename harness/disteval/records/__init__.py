"""Records of a sample each, as evaluation harnesses write them, and what they prove.

`table` reads the files of any harness into one table, `verify` says which samples a number is
about, and `certificate` holds that in a file. Polars is imported when a file is read.
"""
