"""HTML pages that are complete in themselves: the report of runs and the player of recorded episodes.

Plain data in, text out: nothing here reads a run directory or knows an agent, so it may import only `errors`,
`atari57` and NumPy. Start with `report.py`; `document.py` puts a page together from `assets/`.
"""
