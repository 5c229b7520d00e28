"""Tables of recipes and environments for the terminal.

Reads configurations and run directories but changes neither. May import every subpackage except `bench`.
"""
