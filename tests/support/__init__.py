"""Environments, batches and runs that several test modules share."""
