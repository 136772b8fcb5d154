"""Completeness of a search: pulses of known S/N are added to noise or to data, searched for, and counted."""
