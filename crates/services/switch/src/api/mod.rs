//! HTTP: the participants' interface and the operators'.

pub mod admin;
mod bodies;
mod bulk;
mod lookups;
pub mod participant;
mod routed;
