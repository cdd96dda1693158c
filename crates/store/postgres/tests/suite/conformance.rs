//! The conformance suite of all stores on PostgreSQL: all of it without partitions, and with partitions where rows of
//! several of them meet in one read or one commit.

use crate::common;

use batzen_store::store_conformance;
use common::fixture;

store_conformance!(whole, || fixture(0));
store_conformance! { @each four_partitions, || fixture(4),
    many_rows_come_in_the_order_asked
    conflicts_leave_nothing_behind
    a_set_may_change_a_row_several_times
    stale_changes_are_refused
    prefixes_group_rows
    a_row_may_have_several_entries
    ranges_are_ordered_and_bounded
    ranges_can_be_paged
    serial_indexes_queue_in_commit_order
    scans_show_every_row_once
    frozen_rows_stay_as_they_were
    serials_follow_the_commits
    threads_see_whole_commits
    reads_may_go_together
    shard_keys_are_spread
}
store_conformance! { @each sixty_four_partitions, || fixture(64),
    many_rows_come_in_the_order_asked
    ranges_can_be_paged
    serial_indexes_queue_in_commit_order
    scans_show_every_row_once
    shard_keys_are_spread
}
