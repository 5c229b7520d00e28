"""`casa watch`: a trained agent plays, and the critic is seen acting: frame, π, Q and V of every step.

`record.py` plays and gives plain data; the others are views of it: a video, a GIF, a page, the terminal. May import
every subpackage but `report` and `bench`. Start with `record.py`.
"""
