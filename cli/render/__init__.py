"""A diagnosis as text, JSON, Markdown or one HTML file: pure functions that add nothing to it."""
