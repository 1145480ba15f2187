"""Which mechanism to take: compare, plan, tune, limits."""
