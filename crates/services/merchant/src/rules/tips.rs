//! Tips: a shop promises coins of its reserve, and customers pick them up (merchant chapters 2.9 and 6.11).

use batzen_crypto::EddsaPublicKey;
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_store::Table as _;
use batzen_tables::merchant::{
    InstanceKey, Instances, TipKey, TipPickupKey, TipPickupRow, TipPickups, TipReserveKey, TipReserveRow,
    TipReserves, TipRow, Tips,
};

use super::extras::working_shop;
use super::{Decided, MerchantRules, Refusal};

/// The maximum number of reserves of an instance.
pub(crate) const RESERVES_MAX: usize = 1_024;

/// Adds a reserve.
#[derive(Clone, Debug)]
pub(crate) struct CreateTipReserve {
    pub(crate) key: TipReserveKey,
    /// Its row; nothing is paid in.
    pub(crate) row: TipReserveRow,
}

impl Command<MerchantRules> for CreateTipReserve {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<TipReserves>(self.key.clone());
        plan.group::<TipReserves>(TipReserves::BY_INSTANCE, &self.row.instance);
        plan.row::<Instances>(InstanceKey::new(&self.row.instance));
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        working_shop(rows, &self.row.instance)?;
        if rows.group::<TipReserves>(TipReserves::BY_INSTANCE, &self.row.instance).len() >= RESERVES_MAX {
            return Err(Refusal::TooMany(TipReserves::DEF.name));
        }
        rows.insert::<TipReserves>(&self.key, self.row.clone());
        Ok(())
    }
}

/// Books what the exchange got for a reserve. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct FundTipReserve {
    pub(crate) key: TipReserveKey,
    /// Its first balance.
    pub(crate) balance: Money,
    /// When the exchange closes it.
    pub(crate) expires: Timestamp,
}

impl Command<MerchantRules> for FundTipReserve {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<TipReserves>(self.key.clone());
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let known = reserve(rows, &self.key)?;
        // Later its balance is less, because coins were withdrawn.
        if known.exchange_initial.is_zero() && !self.balance.is_zero() {
            let row = TipReserveRow { exchange_initial: self.balance, expires: self.expires, ..known };
            rows.update::<TipReserves>(&self.key, row);
        }
        Ok(())
    }
}

/// Forgets a reserve's private key, and with `purge` the reserve with its tips.
#[derive(Clone, Debug)]
pub(crate) struct DeleteTipReserve {
    pub(crate) key: TipReserveKey,
    /// Whether to forget it.
    pub(crate) purge: bool,
    /// All pickups of its tips, as read before.
    pub(crate) pickups: Vec<TipPickupKey>,
}

impl Command<MerchantRules> for DeleteTipReserve {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<TipReserves>(self.key.clone());
        plan.group::<Tips>(Tips::BY_RESERVE, &self.key.reserve_pub);
        for key in &self.pickups {
            plan.row::<TipPickups>(key.clone());
        }
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let known = reserve(rows, &self.key)?;
        if self.purge {
            let tips = rows.group::<Tips>(Tips::BY_RESERVE, &self.key.reserve_pub);
            let tips: Vec<TipKey> = tips.into_iter().map(|(key, _)| key.clone()).collect();
            for key in &self.pickups {
                let is_of_reserve = tips.iter().any(|tip| tip.tip_id == key.tip_id);
                if is_of_reserve && rows.get::<TipPickups>(key).is_some() {
                    rows.delete::<TipPickups>(key);
                }
            }
            tips.iter().for_each(|key| rows.delete::<Tips>(key));
            rows.delete::<TipReserves>(&self.key);
        } else if known.picked_up < known.committed || self.has_open_pickups(rows, known.picked_up)? {
            return Err(Refusal::TipsOpen);
        } else {
            rows.update::<TipReserves>(&self.key, TipReserveRow { reserve_priv: None, ..known });
        }
        Ok(())
    }
}

impl DeleteTipReserve {
    /// Returns whether the coins of a pickup are not known, since it is under way or its answer was lost: only the
    /// reserve's key gets them.
    fn has_open_pickups(&self, rows: &WorkingSet, picked_up: Money) -> Result<bool, Refusal> {
        let known: Vec<&TipPickupRow> =
            self.pickups.iter().filter_map(|key| rows.get::<TipPickups>(key)).collect();
        let sum = Money::checked_sum(known.iter().map(|row| row.amount)).map_err(|_| Refusal::TipSum)?;
        // Less, if another pickup began after they were read.
        Ok(sum != picked_up || known.iter().any(|row| row.signatures.is_none()))
    }
}

/// Promises a tip.
#[derive(Clone, Debug)]
pub(crate) struct AuthorizeTip {
    pub(crate) key: TipKey,
    /// Its row. Its end is that of its reserve.
    pub(crate) row: TipRow,
}

impl Command<MerchantRules> for AuthorizeTip {
    type Answer = Timestamp;

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<TipReserves>(TipReserveKey { reserve_pub: self.row.reserve_pub });
        plan.row::<Tips>(self.key.clone());
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Decided<Self::Answer> {
        let AuthorizeTip { key, row } = self;
        let from = TipReserveKey { reserve_pub: row.reserve_pub };
        let known = reserve(rows, &from)?;
        if known.reserve_priv.is_none() || known.instance != row.instance {
            return Err(Refusal::ReserveUnknown);
        }
        if known.expires <= now {
            return Err(Refusal::ReserveExpired);
        }
        if row.amount > known.left() {
            return Err(Refusal::TipTooLarge);
        }
        let committed = known.committed.checked_add(row.amount).map_err(|_| Refusal::TipTooLarge)?;
        rows.insert::<Tips>(key, TipRow { expires: known.expires, ..row.clone() });
        rows.update::<TipReserves>(&from, TipReserveRow { committed, ..known.clone() });
        Ok(known.expires)
    }
}

/// Gives a part of a tip away. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct PickUpTip {
    /// The part.
    pub(crate) key: TipPickupKey,
    /// The reserve of the tip, as read before: it never changes.
    pub(crate) reserve_pub: EddsaPublicKey,
    /// The amount, withdrawal fees included.
    pub(crate) amount: Money,
    /// The number of coins.
    pub(crate) planchets: u32,
}

impl Command<MerchantRules> for PickUpTip {
    type Answer = Option<String>;

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<TipPickups>(self.key.clone());
        plan.row::<Tips>(TipKey { tip_id: self.key.tip_id });
        plan.row::<TipReserves>(TipReserveKey { reserve_pub: self.reserve_pub });
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Decided<Self::Answer> {
        let PickUpTip { key, reserve_pub, amount, planchets } = self;
        let tip_key = TipKey { tip_id: key.tip_id };
        let tip = rows.get::<Tips>(&tip_key).cloned().ok_or(Refusal::TipUnknown)?;
        // A repetition gets the same coins, however late.
        if let Some(known) = rows.get::<TipPickups>(key) {
            return Ok(known.signatures.clone());
        }
        let reserve_key = TipReserveKey { reserve_pub: *reserve_pub };
        let from = reserve(rows, &reserve_key)?;
        if tip.expires <= now || from.reserve_priv.is_none() {
            return Err(Refusal::TipExpired);
        }
        let overflow = |_| Refusal::TipSum;
        let picked_up = tip.picked_up.checked_add(*amount).map_err(overflow)?;
        if picked_up > tip.amount {
            return Err(Refusal::TipExceeded);
        }
        let all = from.picked_up.checked_add(*amount).map_err(overflow)?;
        assert!(all <= from.committed, "tips are at most what was promised");
        rows.update::<Tips>(&tip_key, TipRow { picked_up, ..tip });
        rows.update::<TipReserves>(&reserve_key, TipReserveRow { picked_up: all, ..from });
        let row = TipPickupRow { amount: *amount, planchets: *planchets, time: now, signatures: None };
        rows.insert::<TipPickups>(key, row);
        Ok(None)
    }
}

/// Books the exchange's signatures. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct RecordTipPickup {
    /// The part.
    pub(crate) key: TipPickupKey,
    /// The answer to the customer, as JSON.
    pub(crate) signatures: String,
}

impl Command<MerchantRules> for RecordTipPickup {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<TipPickups>(self.key.clone());
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let known = rows.get::<TipPickups>(&self.key).cloned().ok_or(Refusal::TipUnknown)?;
        if known.signatures.is_none() {
            let row = TipPickupRow { signatures: Some(self.signatures.clone()), ..known };
            rows.update::<TipPickups>(&self.key, row);
        }
        Ok(())
    }
}

/// Takes back a part of a tip whose coins the exchange will never sign. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct TakeBackPickup {
    /// The part.
    pub(crate) key: TipPickupKey,
    /// The reserve of the tip.
    pub(crate) reserve_pub: EddsaPublicKey,
}

impl Command<MerchantRules> for TakeBackPickup {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.row::<TipPickups>(self.key.clone());
        plan.row::<Tips>(TipKey { tip_id: self.key.tip_id });
        plan.row::<TipReserves>(TipReserveKey { reserve_pub: self.reserve_pub });
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let tip_key = TipKey { tip_id: self.key.tip_id };
        let reserve_key = TipReserveKey { reserve_pub: self.reserve_pub };
        let open = rows.get::<TipPickups>(&self.key).filter(|row| row.signatures.is_none());
        let Some(amount) = open.map(|row| row.amount) else { return Ok(()) };
        let tip = rows.get::<Tips>(&tip_key).cloned().ok_or(Refusal::TipUnknown)?;
        let from = reserve(rows, &reserve_key)?;
        let less = |sum: Money| sum.checked_sub(amount).expect("sums contain each part");
        rows.update::<Tips>(&tip_key, TipRow { picked_up: less(tip.picked_up), ..tip });
        rows.update::<TipReserves>(&reserve_key, TipReserveRow { picked_up: less(from.picked_up), ..from });
        rows.delete::<TipPickups>(&self.key);
        Ok(())
    }
}

fn reserve(rows: &WorkingSet, key: &TipReserveKey) -> Result<TipReserveRow, Refusal> {
    rows.get::<TipReserves>(key).cloned().ok_or(Refusal::ReserveUnknown)
}
