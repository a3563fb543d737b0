"""Offload of topics to a tier: whole closed ledgers (PIP-17), or segments streamed while entries arrive (PIP-76).

Entry points: :class:`~afterglow.offload.service.OffloadService` for a server. The numbered commit steps of ledgers
are in :mod:`~afterglow.offload.ledgers`, those of segments in :mod:`~afterglow.offload.segments.upload`, deletes in
:mod:`~afterglow.offload.pending_deletes`. Drivers implement :mod:`~afterglow.offload.offloader`.
"""
