//! The objects that an increment audits.

use std::collections::HashSet;

use batzen_crypto::Wtid;
use batzen_tables::exchange::{CoinPub, PursePub, ReservePub, ReserveRequestKey};

use crate::audit::books::RecoupName;

/// Objects whose rows are all in the books, or brought forward.
#[derive(Debug, Default, Clone)]
pub(crate) struct Scope {
    pub(crate) coins: HashSet<CoinPub>,
    pub(crate) reserves: HashSet<ReservePub>,
    pub(crate) transfers: HashSet<Wtid>,
    pub(crate) purses: HashSet<PursePub>,
    pub(crate) opens: HashSet<ReserveRequestKey>,
    pub(crate) recoups: HashSet<RecoupName>,
}
