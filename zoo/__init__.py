"""Trained models of lavps: one folder per model, with weights, configuration and card. There is no code."""
