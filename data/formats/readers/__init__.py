"""The log formats: each module recognizes the files of one, and reads them."""
