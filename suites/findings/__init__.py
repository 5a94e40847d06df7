"""What the rules and the audit found in other libraries; see docs/findings.md.

- findings.toml: each finding, and `table`: what a finding is
- `adapters`: classes over released libraries that ``disteval check`` judges
- `replay`: runs each finding and each report of docs/findings/ again
- environments.toml: what ``nox -s findings`` and ``nox -s evalbugs`` install
"""
