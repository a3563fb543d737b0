"""Encoding and decoding of all stored and transmitted bytes: pure functions and frozen records, without I/O.

Entry points, by kind of bytes:

* an offloaded object: ``objects`` (keys, user metadata), ``blocks`` (headers, block planning), ``index`` (the index
  object), ``statistics`` (times and checksums of blocks), ``checks`` (contradictions and damage);
  ``sequence_file`` reads Hadoop's format, which Pulsar's ``filesystem`` driver writes
* entries: ``frames`` (the framing of ledgers and blocks), ``entry`` (one entry in Python values), ``columns`` (entries
  and messages as Arrow columns), ``marks`` (chunks, markers, transactions), ``compression``
* values with a schema: ``schema`` and the package ``typed``
* the binary protocol: ``wire``; metadata: ``proto`` (generated), ``metadata_envelope``; positions: ``position``

``_kernels`` has the compiled inner loops.
"""
