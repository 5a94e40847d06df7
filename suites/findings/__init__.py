"""What the rules and the audit found in other libraries; see docs/findings.md.

- `table`: what a finding is, and all of them; `rows`: one module for each library
- `adapters`: classes over released libraries that ``disteval check`` judges
- `page`: the tables of docs/findings.md, written from the rows
- `replay`: runs each finding and each report of docs/findings/ again
- environments.toml: what ``nox -s findings`` and ``nox -s evalbugs`` install
"""
