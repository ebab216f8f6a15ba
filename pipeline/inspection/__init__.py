"""What a log contains, for `inspect-traffic`."""
