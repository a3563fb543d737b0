"""The catalog: tenants, namespaces with their stored policies, partitioned topics, clusters, and schemas.

Entry points: :class:`~afterglow.catalog.catalog.Catalog`, and for schemas
:class:`~afterglow.catalog.schema_registry.SchemaRegistry`.
"""
