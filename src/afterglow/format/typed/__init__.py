"""Typed columns from the values of messages.

``definitions.read_definition`` parses the Avro definition of an Avro or JSON schema to ``nodes``, which also has the
trees of Pulsar's primitive schemas and ``merge``, the common type of several versions. ``programs.Compiler`` compiles
the decoding of each version to that type, and ``columns.decode`` runs the compiled program.
"""
