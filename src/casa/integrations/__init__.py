"""The CASA head inside other libraries, one module per library.

Each module needs its library and nothing else imports it: `casa.integrations.sb3` is a policy for Stable-Baselines3
(`pip install 'casa-rl[sb3]'`).
"""
