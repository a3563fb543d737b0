"""The catalog: tenants, namespaces with their stored policies, partitioned topics, and clusters, at Pulsar's own paths.

Entry point: :class:`~afterglow.catalog.catalog.Catalog`.
"""
