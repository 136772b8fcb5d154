"""What a stream writes and sends: tables, status, metrics, VOEvents, pictures."""
