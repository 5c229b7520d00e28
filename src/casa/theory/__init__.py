"""The paper's statements, checked numerically on finite MDPs and on networks (`casa verify`).

Uses only heads, losses, targets and diagnostics, without environments or training. Start with `verify.py`.
"""
