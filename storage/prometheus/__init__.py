"""Jobs and samples that a Prometheus (or anything with its API) holds already, read without our agent."""
