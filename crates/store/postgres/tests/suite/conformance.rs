//! The conformance suite of all stores on PostgreSQL: without partitions, with a few, and with as many as
//! possible.

use crate::common;

use batzen_store::store_conformance;
use common::fixture;

store_conformance!(whole, || fixture(0));
store_conformance!(four_partitions, || fixture(4));
store_conformance!(sixty_four_partitions, || fixture(64));
