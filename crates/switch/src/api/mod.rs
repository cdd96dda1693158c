//! HTTP: the participants' interface and the operators'.

pub mod admin;
pub mod participant;
