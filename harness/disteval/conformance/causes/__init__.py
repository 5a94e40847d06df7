"""The usual causes of failures, and how each is recognised in what was seen.

A cause is a function of `disteval.conformance.seen.Seen` that returns a sentence, what is wrong and
what to do, or nothing. A rule lists its own; the causes of `raised` belong to every rule. No cause
is named that was not seen.
"""
