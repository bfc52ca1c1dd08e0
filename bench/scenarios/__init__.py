"""Labelled synthetic jobs: a step model at 20 Hz, sampled at 1 Hz with the faults of the real tools.

Shares no code and no threshold with the rules: what is true comes from how the job was built.
"""
