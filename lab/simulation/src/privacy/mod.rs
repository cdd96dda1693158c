//! The privacy game: how well the operator can guess which withdrawal a payment comes from.
//!
//! A [`town`] lives for some weeks with the real wallet core. The operator's [`view`] is everything that the
//! exchange keeps, which [`facts`] arranges. Attacks guess the reserve of each paid coin: by equal
//! [`identifiers`], by [`features`] such as amounts and times, and by the [`graph`] of refreshes. The
//! [`game`] scores them against what happened.

pub mod facts;
pub mod features;
pub mod game;
pub mod graph;
pub mod identifiers;
pub mod people;
pub mod report;
pub mod score;
pub mod town;
pub mod view;
