"""Tables of recipes and environments for the terminal, and `casa report`: runs as one HTML file, or live.

Reads configurations and run directories but changes neither. May import every subpackage except `bench`.
"""
