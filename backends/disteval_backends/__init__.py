"""Backend adapters: one short file for each communication library, imported by name only."""
