"""What reads and replays the pages of findings/, which say what is wrong in other libraries.

- `page`: what a page of a finding holds
- `replay`: runs a finding's commands and program again, with what ``nox -s findings`` installs
- `index`: writes findings/README.md
- `adapters`: classes over released libraries that ``disteval check`` judges
"""
