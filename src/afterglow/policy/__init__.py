"""Policies: as they are stored, checked, changed, and in force.

Entry points: :class:`~afterglow.policy.resolver.Policies` gives the effective policy of a topic and notifies of
changes; :class:`~afterglow.policy.changes.PolicyChanges` changes what is stored, or refuses to;
:mod:`~afterglow.policy.fields` is the table of all fields that a namespace or a topic may set.
"""
