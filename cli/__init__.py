"""The command line: reads arguments, calls the other packages, renders what they return."""
