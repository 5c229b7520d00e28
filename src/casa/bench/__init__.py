"""How fast each stage of a run is, alone and together with the others: `casa bench`.

Drives runs, so it may import every room but reports. Start with `measure.py`.
"""
