//! HTTP: the participants' interface and the operators'.

pub mod admin;
mod bulk;
pub mod participant;
