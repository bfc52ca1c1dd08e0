"""The agent: samples the node, stores the series, judges them live and serves /metrics."""
