"""Federated training: clients, server, cohorts, data, runs, sweeps."""
