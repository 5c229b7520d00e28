"""`casa bench`: throughput of each stage of a run, alone and together with the others.

It drives whole runs, so it may import every subpackage except `report`. Start with `measure.py`.
"""
