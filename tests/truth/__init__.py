"""Reference implementations: direct, slow and plain."""
