"""Personal data in logs: detection, surrogates, regeneration."""
