"""A node with eight GPUs that does not exist, training a job with four faults: collectors for demos and tests.

It imitates the machine (schedule, physics, memory, host), second by second, and knows nothing of rules.
"""
