"""Rules as data: loading, evaluating and explaining them, live and afterwards alike."""
