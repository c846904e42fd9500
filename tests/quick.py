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
        "test_an_interrupted_build_continues_in_its_row": ("list-1", "*-3"),
    },
    "checkpoint/test_checkpoint.py": {
        "test_a_full_disk": (),
    },
    "coding/test_coding.py": {
        "test_parts_are_the_same_for_any_batches": (),
    },
    "history/test_transfer.py": {
        "test_again_it_sends_what_has_come_since": ("few-directory", "many-memory"),
        "test_any_history": ("many",),
        "test_two_copies_at_once": ("few-directory", "many-memory"),
        "test_versions_that_were_copied_alone_are_shared_with": ("few-*",),
    },
    "loading/test_batch_kinds.py": {
        "test_all_kinds_arrive_as_from_torchs_loader_and_stay_unchanged": ("no workers", "fork"),
    },
    "loading/test_in_use.py": {
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
    "loading/test_metered_torch.py": {
        "test_batches_and_random_numbers_are_those_of_the_loader": ("*-0", "shuffled-2", "stream-2"),
    },
    "loading/test_shared_memory.py": {
        "test_batches_that_a_forked_child_holds_stay_as_they_are": ("forked-False", "by_process-True"),
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
        "test_a_worker_finds_a_flipped_bit": ("*-fork",),
    },
    "reading/test_reader.py": {
        "test_a_reader_maps_more_files_while_the_process_has_mappings_to_spare": ("lmdb",),
        "test_few_files_are_open_at_once_and_all_rows_are_right": ("lmdb-1", "hdf5-3"),
    },
    "sampling/test_replay.py": {
        "test_batches_as_they_are_ready": ("tasks", "lazily"),
        "test_stopped_and_continued_with_other_workers": ("tasks", "a list", "ours within"),
    },
    "sampling/test_sampler.py": {
        "test_torchdatas_stateful_loader_resumes_it": ("*-0", "True-2"),
    },
    "sampling/test_seeding.py": {
        "test_a_collate_function_draws_the_same_under_any_workers_and_after_any_resume": ("a dataset",),
        "test_a_row_that_seldom_draws_is_not_missed": ("MT19937-*", "PCG64-rand"),
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
        "test_killed_before_any_operation_a_version_exists_or_not": ("overwrite", "remove"),
    },
    "stores/test_sharing.py": {
        "test_many_versions_with_files_of_their_own_go_in_one_sweep": ("memory",),
    },
    "tables/test_parquet_unified.py": {
        "test_a_filter_keeps_the_same_rows_with_and_without_statistics": ("?", "1?"),
    },
    "tools/test_doctor_corpus.py": {
        "test_some_that_are_broken_are_named_and_some_that_are_healthy_are_not_accused": (),
    },
    "tools/test_doctor_program.py": {
        "test_an_interrupted_program_is_examined_and_ends_as_interrupted": (),
    },
    "tools/test_doctor_findings.py": {
        "test_a_function_that_seeds_all_workers_alike_is_a_finding": ("random-random",),
        "test_a_generator_that_each_worker_has_a_copy_of_is_a_finding": ("ours-own", "torch's-own torch"),
    },
    "tools/test_view.py": {
        "test_the_command_ends_with_ctrl_c": (),
    },
    "tools/test_view_server.py": {
        "test_the_token_is_on_no_command_line": (),
    },
    "tools/test_doctor.py": {
        "test_the_text_is_as_it_was": ("80",),
    },
    "test_power.py": {
        "test_a_version_exists_whole_or_not_at_all": ("*-lmdb", "overwrite-hdf5"),
        "test_an_operation_cut_off_by_a_power_cut_succeeds_when_called_again": ("*-lmdb", "copy-hdf5"),
    },
    "typing/test_program.py": {
        "test_pyright_finds_what_is_wrong_and_nothing_else": (),
    },
    "versions/test_columns.py": {
        "test_a_history_with_groups_travels": ("memory",),
    },
    "versions/test_listed.py": {
        "test_any_history_gives_what_arrays_give": ("directory",),
        "test_a_long_history_stays_small": (),
    },
    "versions/test_manifest.py": {
        "test_a_nesting_without_end_is_refused": (),
    },
    "views/test_map.py": {
        "test_random_rows_depend_on_seed_epoch_and_row_alone": ("map", "within"),
        "test_every_reader_asks_for_its_epoch": ("*0", "*3", "*6"),
    },
    "views/test_mix.py": {
        "test_a_mixture_goes_on_under_other_ranks_batches_and_workers": ("lmdb-*",),
    },
    "views/test_packed.py": {
        "test_the_laws_of_views": ("lmdb",),
    },
}

# Of these all but the cases that are named.
BUT: Named = {
    "adapters/test_arrays.py": {
        "test_it_serves_samplers_loaders_and_streams": ("forkserver",),
    },
    "formats/test_formats.py": {
        "test_every_format_passes_the_kit": ("hdf5-lzf",),
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
    "storage/test_storage.py": {
        "test_wide_and_large_rows": ("hdf5",),
    },
    "test_docs.py": {
        "test_every_code_block_runs": (
            "docs/doctor.md",
            "docs/meter.md",
            "docs/versions.md",
            "docs/howto/yogadl.md",
            "docs/tutorials/*",
        ),
        "test_examples_in_docstrings": ("torchyoga.tools.doctor.examination",),
    },
    "tools/test_doctor.py": {
        "test_nothing_is_found_on_a_healthy_loader_with_workers": ("torch's-*",),
    },
    "versions/test_info.py": {
        "test_values_that_cannot_be_stored_are_refused": ("info20-*",),
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
