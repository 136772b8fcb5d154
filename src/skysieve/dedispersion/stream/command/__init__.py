"""The commands of live streams, and the emulator of a telescope."""
