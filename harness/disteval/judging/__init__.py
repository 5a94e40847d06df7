"""What every judgement of a backend or a loop shares: ranks that are led, doubts, and findings.

It is below `disteval.conformance` and `disteval.audit`, and knows no rule and no case.
"""
