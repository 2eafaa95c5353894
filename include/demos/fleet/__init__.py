"""Two simulated fleets of vehicles, and the recount of what became of their pings."""
