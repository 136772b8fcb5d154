"""Output of a stream: tables, status, metrics, VOEvents, pictures."""
