"""The fault session: faults at random moments of real runs, and a checker of what comes of them.

``nox -s faults`` runs it. `runs` draws which command runs and what happens to it, `inside` does one
run in namespaces of its own, and `checker` judges what came of it.
"""
