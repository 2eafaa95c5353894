"""Stories told on the local stack, with what they need: simulators, measurements and reports.

May import the core and the local stack. Only the command ``demo``, benchmarks and tests import this; jobs never run it.

Entry points: ``upgrade.Demo``, ``elasticity.Elasticity``, ``fleet.story.FleetStory``, ``transactions.story``.
"""
