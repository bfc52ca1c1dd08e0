"""Samples, jobs and events: what they are (`sample`, `job`, `catalog`) and where they are kept."""
