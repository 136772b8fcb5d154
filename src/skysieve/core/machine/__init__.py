"""What was measured on this machine: costs of methods, rates of searches."""
