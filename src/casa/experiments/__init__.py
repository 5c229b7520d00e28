"""Many runs: studies as data, a scheduler that survives being killed, and the figures and tables of what was found.

Runs are separate processes, and the run directories are the only state. Reads run directories; imports everything below
`casa.cli`, but no other reader of runs. Start with `studies.py` (what is run), then `scheduler.py` (how), `command.py`.
"""
