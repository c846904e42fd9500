"""Which cases `make test` runs of tests that take long; `make test-rest` runs all the others of them.

They are named here in one place, so that a look shows what is left out, and a measurement what may be.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TypeAlias

import pytest
from hypothesis import settings

__all__ = ["BUT", "ONLY", "examples", "leave_to_the_rest"]

Named: TypeAlias = dict[str, dict[str, tuple[str, ...]]]  # patterns by file and test

# Of these only the cases that are named, by pattern; a case that is added is one of the rest.
ONLY: Named = {
    "adapters/test_flat_map.py": {
        "test_an_interrupted_build_continues_in_its_row": ("*-3",),
    },
    "adapters/test_hdf5.py": {
        "test_children_forked_after_reading_read_every_row": ("contiguous", "gzip", "text"),
    },
    "adapters/test_ref.py": {
        "test_an_interrupted_build_of_a_view_continues": ("codecs-whole", "plain-*"),
    },
    "adapters/test_webdataset.py": {
        "test_a_build_of_encoded_shards_continues": ("True",),
    },
    "checkpoint/test_checkpoint.py": {
        "test_a_full_disk": (),
        "test_several_ranks": ("2",),
    },
    "checkpoint/test_saved_program.py": {
        "test_rows_of_epochs_left_early_are_told": ("0-*", "2-2"),
    },
    "coding/test_coding.py": {
        "test_parts_are_the_same_for_any_batches": (),
    },
    "formats/test_hdf5_filters.py": {
        "test_a_sample_of_what_a_filter_accepts_is_read_correctly": (
            "none",
            "gzip",
            "lzf",
            "bitshuffle * 8",
            "blosc * 1",
            "blosc2 * 2",
            "bzip2 9",
            "fcidecomp",
            "lz4 100",
            "zstd 3",
            "[!bflnz]*",
            "zfp*",
        ),
    },
    "history/test_transfer.py": {
        "test_again_it_sends_what_has_come_since": ("many-memory",),
        "test_any_history": ("many-*",),
        "test_two_copies_at_once": ("many-memory",),
        "test_versions_that_were_copied_alone_are_shared_with": ("few-memory",),
    },
    "loading/test_batch_kinds.py": {
        "test_all_kinds_arrive_as_from_torchs_loader_and_stay_unchanged": ("no workers", "fork"),
    },
    "loading/test_in_use.py": {
        "test_a_thread_that_asks_without_a_pause_changes_nothing": ("loader", "ref", "*sampler"),
        "test_a_tutorials_peek_before_set_epoch_loses_nothing": ("*-0", "True-2"),
        "test_batches_of_a_worker_that_was_killed_come_from_others": ("True",),
    },
    "loading/test_loader.py": {
        "test_a_child_forked_while_workers_run_leaves_them_to_its_parent": ("lmdb-False", "hdf5-True"),
        "test_a_shuffle_by_files_is_resumed_by_other_ranks_workers_and_batches": (
            "block-shard",
            "True-global",
        ),
        "test_nothing_is_asked_for_its_truth_value": ("0-*", "2-dataset"),
    },
    "loading/test_shared_memory.py": {
        "test_batches_that_a_forked_child_holds_stay_as_they_are": ("forked-False",),
    },
    "order/test_mixed.py": {
        "test_other_weights_at_every_place": ("8",),
    },
    "order/test_weighted_order.py": {
        "test_an_order_is_freed_with_what_it_has_computed": ("made0",),
    },
    "process/test_task_thread.py": {
        "test_a_forgotten_or_closed_thread_keeps_nothing_alive": ("True",),
    },
    "reading/test_flipped_bits.py": {
        "test_a_worker_finds_a_flipped_bit": ("lmdb-fork",),
    },
    "reading/test_reader.py": {
        "test_a_reader_maps_more_files_while_the_process_has_mappings_to_spare": ("lmdb",),
        "test_few_files_are_open_at_once_and_all_rows_are_right": ("lmdb-1", "hdf5-3"),
    },
    "sampling/test_replay.py": {
        "test_batches_as_they_are_ready": ("tasks", "lazily"),
        "test_stopped_and_continued_with_other_workers": ("tasks", "ours within"),
    },
    "sampling/test_sampler.py": {
        "test_torchdatas_stateful_loader_resumes_it": ("*-0", "True-2"),
    },
    "sampling/test_seeding.py": {
        "test_a_collate_function_draws_the_same_under_any_workers_and_after_any_resume": ("a dataset",),
        "test_a_row_that_seldom_draws_is_not_missed": ("MT19937-random", "MT19937-_torch", "PCG64-rand"),
    },
    "sampling/test_unordered.py": {
        "test_resumed_twice_every_row_comes_once": ("2",),
    },
    "storage/test_build.py": {
        "test_interrupted_at_any_moment_a_build_is_continued": ("lmdb",),
    },
    "storage/test_damage.py": {
        "test_damaged_files_give_their_rows_or_an_error": ("lmdb", "hdf5 gzip"),
    },
    "storage/test_growing.py": {
        "test_any_sequence_gives_what_lists_give": ("directory-lmdb", "memory-hdf5"),
    },
    "storage/test_storage.py": {
        "test_a_flipped_bit_anywhere_gives_an_error_or_the_right_rows": ("lmdb",),
        "test_a_row_that_does_not_fit_publishes_nothing": ("lmdb",),
        "test_a_shape_that_varies_late_needs_a_schema": ("lmdb",),
        "test_any_text_is_an_id_and_none_leaves_the_root": ("lmdb",),
        "test_checks_and_copies_during_builds_find_no_damage": ("lmdb",),
        "test_killed_at_any_moment_a_version_is_complete_or_absent": ("lmdb",),
        "test_worker_processes_read_a_map_style_source": ("lmdb",),
    },
    "stores/test_local.py": {
        "test_killed_before_any_operation_a_version_exists_or_not": ("overwrite",),
    },
    "stores/test_sharing.py": {
        "test_many_versions_with_files_of_their_own_go_in_one_sweep": ("memory",),
        "test_nothing_is_lost_if_a_listing_misses_what_comes_and_goes": ("*-memory",),
    },
    "tables/test_parquet.py": {
        "test_conditions_keep_the_rows_that_pyarrow_keeps": ("*-7",),
        "test_rows_are_those_that_pyarrow_reads": ("7",),
    },
    "tables/test_parquet_filters.py": {
        "test_terms_on_times_take_any_time": ("UTC-*", "*-us"),
    },
    "tables/test_parquet_unified.py": {
        "test_a_filter_keeps_the_same_rows_with_and_without_statistics": ("?",),
        "test_a_schema_promotes_what_files_have_and_fills_in_what_they_lack": ("?", "1?"),
    },
    "test_house.py": {
        "test_loading_names_collects_no_garbage_and_leaves_the_collector_as_it_was": ("enable",),
    },
    "test_power.py": {
        "test_a_version_exists_whole_or_not_at_all": ("*-lmdb", "overwrite-hdf5"),
        "test_an_operation_cut_off_by_a_power_cut_succeeds_when_called_again": ("*-lmdb", "copy-hdf5"),
    },
    "tools/test_doctor.py": {
        "test_the_text_is_as_it_was": ("80",),
    },
    "tools/test_doctor_corpus.py": {
        "test_some_that_are_broken_are_named_and_some_that_are_healthy_are_not_accused": (),
    },
    "tools/test_doctor_findings.py": {
        "test_a_function_that_seeds_all_workers_alike_is_a_finding": ("random-random",),
        "test_a_generator_that_each_worker_has_a_copy_of_is_a_finding": ("ours-own", "torch's-own torch"),
    },
    "tools/test_doctor_program.py": {
        "test_an_interrupted_program_is_examined_and_ends_as_interrupted": (),
    },
    "tools/test_view.py": {
        "test_the_command_ends_with_ctrl_c": (),
    },
    "tools/test_view_server.py": {
        "test_the_token_is_on_no_command_line": (),
    },
    "typing/test_program.py": {
        "test_pyright_finds_what_is_wrong_and_nothing_else": (),
    },
    "versions/test_columns.py": {
        "test_a_history_with_groups_travels": ("memory",),
    },
    "versions/test_listed.py": {
        "test_a_long_history_stays_small": (),
        "test_any_history_gives_what_arrays_give": ("directory",),
    },
    "versions/test_manifest.py": {
        "test_a_nesting_without_end_is_refused": (),
    },
    "views/test_map.py": {
        "test_every_reader_asks_for_its_epoch": ("*0", "*6"),
        "test_random_rows_depend_on_seed_epoch_and_row_alone": ("map", "within"),
    },
    "views/test_mix.py": {
        "test_a_mixture_goes_on_under_other_ranks_batches_and_workers": ("lmdb-*",),
    },
    "views/test_packed.py": {
        "test_the_laws_of_views": ("lmdb",),
    },
    "views/test_token_batches.py": {
        "test_loaders_resume_at_every_batch_under_other_ranks": ("lmdb-2", "own-0"),
    },
    "views/test_token_windows.py": {
        "test_laws": ("*-plain", "lmdb-*"),
    },
}

# Of these all but the cases that are named.
BUT: Named = {
    "adapters/test_arrays.py": {
        "test_it_serves_samplers_loaders_and_streams": ("forkserver",),
    },
    "checkpoint/test_saved_program.py": {
        "test_loops_of_other_shapes": ("one by one", "limited", "shorter first"),
    },
    "formats/test_formats.py": {
        "test_a_check_compares_the_rows_with_the_checks_of_the_manifest": (
            "hdf5-lzf",
            "hdf5-gzip",
            "hdf5-blosc",
        ),
        "test_every_format_passes_the_kit": ("hdf5-lzf", "hdf5-gzip", "hdf5-blosc"),
    },
    "formats/test_odd_sizes.py": {
        "test_rows_larger_than_a_block": ("hdf5",),
        "test_rows_of_one_byte": ("hdf5",),
    },
    "history/test_transfer.py": {
        "test_damaged_files_and_manifests_are_not_sent": ("directory",),
        "test_one_version_and_those_it_was_made_from": ("directory",),
        "test_other_versions_there": ("directory",),
        "test_tags_that_were_moved_at_both_ends": ("directory",),
        "test_versions_change_here_meanwhile": ("directory",),
    },
    "loading/test_in_use.py": {
        "test_each_order_draws_one_number_of_torchs_however_a_run_begins": ("rows",),
    },
    "loading/test_loader.py": {
        "test_leaving_early_leaves_no_process_behind": ("hdf5",),
    },
    "loading/test_shared_memory.py": {
        "test_all_batches_held_are_as_without_workers": ("forkserver",),
    },
    "parts/test_builds_by_many.py": {
        "test_a_build_by_many_is_that_of_one": ("*-inputs",),
        "test_clean_spares_builders_that_live": ("directory",),
    },
    "reading/test_flipped_bits.py": {
        "test_a_flipped_bit_is_found": ("lmdb-on_disk",),
    },
    "rows/test_block.py": {
        "test_a_value_that_cannot_be_stored_is_named_with_its_path": ("*262144 containers",),
    },
    "rows/test_outline.py": {
        "test_a_repr_has_ten_lines_at_most": ("4096",),
    },
    "sampling/test_stories.py": {
        "test_ranks_that_look_and_ask_get_the_same_rows_as_ranks_that_do_not": ("foreign_loader",),
    },
    "sampling/test_unordered.py": {
        "test_however_workers_start": ("forkserver",),
    },
    "storage/test_build.py": {
        "test_any_cut_into_blocks_and_files_is_the_same_dataset": ("hdf5",),
        "test_rows_read_many_at_once_are_compared_in_the_same_groups": ("hdf5-2",),
    },
    "storage/test_growing.py": {
        "test_deleted_rows_of_columns_of_all_kinds": ("hdf5",),
    },
    "storage/test_storage.py": {
        "test_a_build_whose_source_broke_is_continued": ("hdf5-2",),
        "test_many_processes_and_threads_build_once": ("hdf5",),
        "test_wide_and_large_rows": ("hdf5",),
    },
    "tables/test_parquet_filters.py": {
        "test_random_conditions_keep_what_a_scan_keeps": ("1", "2", "3", "4"),
    },
    "test_docs.py": {
        "test_every_code_block_runs": (
            "docs/doctor.md",
            "docs/meter.md",
            "docs/versions.md",
            "docs/howto/yogadl.md",
            "docs/tutorials/*",
            "docs/howto/script.md",
        ),
        "test_examples_in_docstrings": ("torchyoga.tools.doctor.examination",),
    },
    "tools/test_doctor.py": {
        "test_nothing_is_found_on_a_healthy_loader_with_workers": ("torch's-*",),
    },
    "versions/test_info.py": {
        "test_values_that_cannot_be_stored_are_refused": ("info20-*",),
    },
    "views/test_pack_plan.py": {
        "test_packing_takes_no_more_than_16_bytes_a_document": ("cut", "split"),
    },
    "views/test_token_batches.py": {
        "test_laws": ("hdf5-*",),
    },
    "views/test_token_windows.py": {
        "test_laws_with_workers": ("hdf5",),
        "test_loaders_with_workers_give_the_same": ("own-jitter",),
    },
    "views/test_views.py": {
        "test_every_row_of_a_nest_once_whoever_goes_on": ("hdf5",),
        "test_nests_of_views_are_lists": ("hdf5",),
    },
    "views/test_windows.py": {
        "test_every_window_once_whoever_goes_on": ("hdf5",),
    },
}


def examples(count: int) -> int:
    """So many examples of a law; half as many in `make test`, as in `make mutants`."""
    assert settings.default is not None
    return count * settings.default.max_examples // 60


def leave_to_the_rest(
    items: Iterable[pytest.Item], is_whole: bool, only: Named = ONLY, but: Named = BUT
) -> None:
    """Marks the cases that `make test` does not run.

    Args:
        items: the tests that were collected.
        is_whole: all tests of their files were; then a pattern that fits none of them is an error.
        only: as `ONLY`.
        but: as `BUT`.
    """
    cases: dict[str, dict[str, list[tuple[str, pytest.Item]]]] = {}
    for item in items:
        name, _, case = item.nodeid.removeprefix("tests/").partition("[")
        file, _, test = name.partition("::")
        cases.setdefault(file, {}).setdefault(test, []).append((case.removesuffix("]"), item))
    lost = []
    for named, is_rest in ((only, False), (but, True)):
        for file, test, patterns in (
            (f, t, p) for f in cases.keys() & named.keys() for t, p in named[f].items()
        ):
            for pattern in patterns:
                if not any(fnmatchcase(case, pattern) for case, _ in cases[file].get(test, ())):
                    lost.append(f"{file}::{test}[{pattern}]")
            for case, item in cases[file].get(test, ()):
                if any(fnmatchcase(case, pattern) for pattern in patterns) == is_rest:
                    item.add_marker(pytest.mark.rest)
    if lost and is_whole:
        raise pytest.UsageError(f"tests/quick.py names what does not exist: {', '.join(sorted(lost))}")
