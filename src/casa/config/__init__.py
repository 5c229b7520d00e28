"""The configuration of a run: fields with their ranges, recipes as overrides, presets, files and flags.

May import `casa.errors`, `casa.tables` and the runtime. `fields.py` declares every field once; `recipes.py` is the
table of agents; `load.py` combines defaults, recipe, preset, file and command line, where the later ones win.
"""
