"""Voltages to power: FFT or polyphase filter bank."""
