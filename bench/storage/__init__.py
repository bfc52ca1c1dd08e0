"""Storage side by side with Prometheus and VictoriaMetrics, and many agents into one Postgres: `make bench-storage`."""
