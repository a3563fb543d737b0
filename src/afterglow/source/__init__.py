"""Python API: topics of a server or a Pulsar cluster, read without Spark and without a broker.

Entry point: :func:`~afterglow.source.connect.connect`, which returns a :class:`~afterglow.source.connect.Source` of
:class:`~afterglow.source.topic.SourceTopic`. ``addresses`` opens the
:class:`~afterglow.source.directory.TopicDirectory` of an address: ``home_directory``, ``admin_directory``,
``cluster_directory``, ``attached_directory``, or ``tier_directory`` for a tier alone.
"""
