"""The process beside a worker that pulls, decodes and acknowledges its events."""
