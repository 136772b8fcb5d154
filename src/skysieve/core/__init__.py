"""Shared tools without astronomy: devices, memory, arrays, kernels, tasks."""
