"""Policies of namespaces and topics: stored, validated, changed, and resolved.

Entry points: :class:`~afterglow.policy.resolver.Policies` resolves the effective policy of a topic and notifies of
changes; :class:`~afterglow.policy.changes.PolicyChanges` changes stored policies, or refuses to;
:mod:`~afterglow.policy.fields` is the table of all fields that a namespace or a topic may set.
"""
