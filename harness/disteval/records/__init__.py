"""Records of a sample each, as evaluation harnesses write them, and what they prove.

`table` reads the files of any harness into one table, `verify` says which samples a number is
about, `certificate` holds that in a file, and `compare` says which of two results is better.
Polars is needed, but not to write a certificate.
"""
