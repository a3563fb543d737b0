"""Values as typed columns: what a schema's definition says, and how values become columns by it.

``definitions`` reads Avro's definitions, which schemas of JSON have too, and ``plain`` knows Pulsar's plain types; both
give ``nodes``. ``merging`` makes one type of several versions, ``programs`` compiles how each version's values become
that type, and ``columns`` runs what was compiled.
"""
