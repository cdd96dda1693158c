//! Measures Batzen: scenarios run against the product's own processes, the ceilings of the machine beside them, and what
//! becomes of the figures: a result directory a run, reports, comparisons, tables.

pub mod machine;
pub mod result;
