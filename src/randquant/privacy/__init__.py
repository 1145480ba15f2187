"""What a release reveals: certificates of one release, the account of a whole run."""
