"""The cluster: which nodes there are, which should be members, which are, and whether jobs fit on them.

May import ``clients``, ``spark`` and what lies below, and neither ``snapshots`` nor ``recount``.

Entry points: ``nodes.Inventory``, ``supervised_nodes.SupervisedNodes``, ``membership.change``,
``capacity.require_capacity``, ``record``, ``view.view``.
"""
