"""Offload of topics to a tier: whole closed ledgers (PIP-17), and segments streamed while entries arrive (PIP-76).

Entry points:

* :class:`~afterglow.offload.service.OffloadService`: offload of all topics of a server.
* :class:`~afterglow.offload.topic_offload.TopicOffload`: one topic. Its ledgers are offloaded by
  :class:`~afterglow.offload.ledger_offload.LedgerOffload`, its segments by
  :class:`~afterglow.offload.segments.topic_stream.TopicStream`.
* Commit protocols: :mod:`~afterglow.offload.ledger_commit` for a ledger, :mod:`~afterglow.offload.segments.upload` for
  a segment, :mod:`~afterglow.offload.freeing` for hot copies, :mod:`~afterglow.offload.pending_deletes` for deletes.
* :func:`~afterglow.offload.task.run_task`: the bulk work of a worker.
* :class:`~afterglow.offload.offloader.LedgerOffloader`: the interface of offload drivers.
"""
