"""Budgets of readers from the tier."""

from __future__ import annotations

from afterglow.config.choices import DamagePolicy
from afterglow.config.kinds import choice, switch
from afterglow.config.quantities import GIB, MIB, duration, size
from afterglow.config.setting import section, setting

_DAMAGE_POLICY = choice(DamagePolicy)


@section
class Reading:
    """Reading from the tier."""

    offload_index_cache_max_bytes: int = setting(
        size(), default=64 * MIB, doc="Memory in bytes for parsed indexes of objects."
    )
    offload_entry_offset_cache_max_bytes: int = setting(
        size(),
        default=32 * MIB,
        doc="Memory in bytes for positions of entries met on the way, which spare a search in the block.",
    )
    offload_read_max_bytes: int = setting(
        size(minimum=MIB),
        default=256 * MIB,
        doc="Memory in bytes for data on its way from the tier, all readers together.",
    )
    offload_scan_read_buffer_size_in_bytes: int = setting(
        size(minimum=1, maximum=2 * GIB - 1),
        default=8 * MIB,
        doc="Bytes fetched by one request of a scan over many blocks.",
    )
    managed_ledger_inactive_offloaded_ledger_eviction_time_seconds: int = setting(
        duration(),
        default=600,
        doc="Seconds without a read after which what is held for an offloaded ledger is dropped. 0: never.",
    )
    damaged_data_policy: DamagePolicy = setting(
        _DAMAGE_POLICY,
        default=DamagePolicy.FAIL,
        doc="What readers do with damaged or missing data: stop with an error, or leave it out and report it.",
        aliases={
            "autoSkipNonRecoverableData": switch(_DAMAGE_POLICY, on=DamagePolicy.SKIP_AND_REPORT, off=DamagePolicy.FAIL)
        },
    )
