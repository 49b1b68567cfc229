"""Simulation-based calibration of a model on a design."""
