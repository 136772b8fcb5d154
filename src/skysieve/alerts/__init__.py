"""Alert streams: the periods of objects, kept up to date while packets arrive."""
