"""The foundation under the searches: devices, memory, arrays, kernels, tasks.  It knows no astronomy."""
