"""Two simulated fleets of vehicles, and the recount of what became of their pings.

May import the core and the local stack.

Entry points: ``story.FleetStory``, ``python -m demos.fleet.alpha`` and ``python -m demos.fleet.beta``.
"""
