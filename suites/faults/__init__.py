"""The fault session: faults at random moments of real runs, and a checker of what comes of them.

``nox -s faults`` runs it. `schedule` draws what happens, to whom and when; `kinds` has the runs;
`inside` does one run in namespaces of its own, `inject` does the harm, and `checker` judges.
"""
