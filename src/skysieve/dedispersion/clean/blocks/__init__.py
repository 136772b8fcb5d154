"""The cleaning that searches do by default, block by block."""
