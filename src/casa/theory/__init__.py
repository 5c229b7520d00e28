"""The paper's statements, checked numerically on finite MDPs and on networks (`casa verify`).

Uses the mathematics alone: heads, losses, targets, diagnostics. Start with `verify.py`.
"""
