//! The objects that an increment audits.

use std::collections::HashSet;

use batzen_crypto::Wtid;
use batzen_tables::exchange::{CoinPub, PursePub, ReservePub, ReserveRequestKey};

use crate::audit::books::RecoupName;

/// Objects whose rows are all in the books, or brought forward.
#[derive(Debug, Default, Clone)]
pub(crate) struct Scope {
    pub coins: HashSet<CoinPub>,
    pub reserves: HashSet<ReservePub>,
    pub transfers: HashSet<Wtid>,
    pub purses: HashSet<PursePub>,
    pub opens: HashSet<ReserveRequestKey>,
    pub recoups: HashSet<RecoupName>,
}
