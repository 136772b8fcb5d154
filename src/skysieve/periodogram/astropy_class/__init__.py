"""The class `LombScargle` with the methods of astropy's, and its registration with astropy."""
