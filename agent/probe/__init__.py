"""The probe: a child process that makes every call into the NVIDIA driver, so that one which never returns blocks nobody else.

`python -m gpudiag.agent.probe` runs it; `client` is the parent's end, `keeper` starts, watches and replaces it.
Everything here but those two runs in the child and imports neither numpy nor a database.
"""
