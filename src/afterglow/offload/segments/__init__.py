"""Streaming offload (PIP-76): segments of a topic that are uploaded to the tier while entries arrive.

Entry points: :class:`~afterglow.offload.segments.topic_stream.TopicStream` decides which segments begin and close;
:class:`~afterglow.offload.segments.upload.SegmentUpload` takes one segment from assignment to commit;
:func:`~afterglow.offload.segments.listing.list_segments` lists them, and :mod:`~afterglow.offload.segments.rollback`
deletes them.
"""
