"""Typed columns from the values of messages.

``definitions.read_definition`` parses the Avro definition of an Avro or JSON schema into ``nodes``, which also have the
trees of Pulsar's plain schemas and ``merge``, the one type for several versions. ``programs.Compiler`` compiles how
values of each version become that type, and ``columns.decode`` runs the compiled program.
"""
