//! Tips: a shop promises coins of its reserve, and customers pick them up (merchant chapters 2.9 and 6.11).

use batzen_crypto::EddsaPublicKey;
use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::merchant::{
    InstanceKey, Instances, TipKey, TipPickupKey, TipPickupRow, TipPickups, TipReserveKey, TipReserveRow,
    TipReserves, TipRow, Tips,
};

use super::{Outcome, Refusal};

/// Adds a reserve.
#[derive(Clone, Debug)]
pub struct CreateTipReserve {
    /// The reserve.
    pub key: TipReserveKey,
    /// Its row; nothing is paid in.
    pub row: TipReserveRow,
}

/// Books what the exchange got for a reserve. Idempotent.
#[derive(Clone, Debug)]
pub struct FundTipReserve {
    /// The reserve.
    pub key: TipReserveKey,
    /// Its first balance.
    pub balance: Money,
    /// When the exchange closes it.
    pub expires: Timestamp,
}

/// Forgets a reserve's private key, and with `purge` the reserve with its tips.
#[derive(Clone, Debug)]
pub struct DeleteTipReserve {
    /// The reserve.
    pub key: TipReserveKey,
    /// Whether to forget it.
    pub purge: bool,
    /// What customers picked up of its tips, which is forgotten with it.
    pub pickups: Vec<TipPickupKey>,
}

/// Promises a tip.
#[derive(Clone, Debug)]
pub struct AuthorizeTip {
    /// The tip.
    pub key: TipKey,
    /// Its row. Its end is that of its reserve.
    pub row: TipRow,
}

/// Gives a part of a tip away. Idempotent.
#[derive(Clone, Debug)]
pub struct PickUpTip {
    /// The part.
    pub key: TipPickupKey,
    /// The reserve of the tip, as read before: it never changes.
    pub reserve_pub: EddsaPublicKey,
    /// The amount, withdrawal fees included.
    pub amount: Money,
    /// The number of coins.
    pub planchets: u32,
}

/// Books the exchange's signatures. Idempotent.
#[derive(Clone, Debug)]
pub struct RecordTipPickup {
    /// The part.
    pub key: TipPickupKey,
    /// The answer to the customer, as JSON.
    pub signatures: String,
}

pub(super) fn plan_reserve(key: &TipReserveKey, instance: Option<&str>, plan: &mut Plan) {
    plan.row::<TipReserves>(key.clone());
    if let Some(instance) = instance {
        plan.row::<Instances>(InstanceKey::new(instance));
    }
}

pub(super) fn plan_deletion(command: &DeleteTipReserve, plan: &mut Plan) {
    plan.row::<TipReserves>(command.key.clone());
    plan.group::<Tips>(Tips::BY_RESERVE, &command.key.reserve_pub);
    for key in &command.pickups {
        plan.row::<TipPickups>(key.clone());
    }
}

pub(super) fn plan_authorization(command: &AuthorizeTip, plan: &mut Plan) {
    plan.row::<TipReserves>(TipReserveKey { reserve_pub: command.row.reserve_pub });
    plan.row::<Tips>(command.key.clone());
}

pub(super) fn plan_pickup(command: &PickUpTip, plan: &mut Plan) {
    plan.row::<TipPickups>(command.key.clone());
    plan.row::<Tips>(TipKey { tip_id: command.key.tip_id });
    plan.row::<TipReserves>(TipReserveKey { reserve_pub: command.reserve_pub });
}

fn reserve(rows: &WorkingSet, key: &TipReserveKey) -> Result<TipReserveRow, Refusal> {
    rows.get::<TipReserves>(key).cloned().ok_or(Refusal::ReserveUnknown)
}

pub(super) fn create(rows: &mut WorkingSet, command: &CreateTipReserve) -> Result<Outcome, Refusal> {
    let instance = InstanceKey::new(&command.row.instance);
    match rows.get::<Instances>(&instance) {
        None => return Err(Refusal::InstanceUnknown),
        Some(found) if found.merchant_priv.is_none() => return Err(Refusal::InstanceDeleted),
        Some(_) => rows.depend_on::<Instances>(&instance),
    }
    rows.insert::<TipReserves>(&command.key, command.row.clone());
    Ok(Outcome::Done)
}

pub(super) fn fund(rows: &mut WorkingSet, command: &FundTipReserve) -> Result<Outcome, Refusal> {
    let known = reserve(rows, &command.key)?;
    // Later its balance is less, because coins were withdrawn.
    if known.exchange_initial.is_zero() && !command.balance.is_zero() {
        let row = TipReserveRow { exchange_initial: command.balance, expires: command.expires, ..known };
        rows.update::<TipReserves>(&command.key, row);
    }
    Ok(Outcome::Done)
}

pub(super) fn delete(rows: &mut WorkingSet, command: &DeleteTipReserve) -> Result<Outcome, Refusal> {
    let known = reserve(rows, &command.key)?;
    if command.purge {
        let tips = rows.group::<Tips>(Tips::BY_RESERVE, &command.key.reserve_pub);
        let tips: Vec<TipKey> = tips.into_iter().map(|(key, _)| key.clone()).collect();
        for key in &command.pickups {
            let is_of_reserve = tips.iter().any(|tip| tip.tip_id == key.tip_id);
            if is_of_reserve && rows.get::<TipPickups>(key).is_some() {
                rows.delete::<TipPickups>(key);
            }
        }
        tips.iter().for_each(|key| rows.delete::<Tips>(key));
        rows.delete::<TipReserves>(&command.key);
    } else if known.picked_up < known.committed {
        return Err(Refusal::TipsOpen);
    } else {
        rows.update::<TipReserves>(&command.key, TipReserveRow { reserve_priv: None, ..known });
    }
    Ok(Outcome::Done)
}

pub(super) fn authorize(
    rows: &mut WorkingSet,
    command: &AuthorizeTip,
    now: Timestamp,
) -> Result<Outcome, Refusal> {
    let AuthorizeTip { key, row } = command;
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
    Ok(Outcome::Tip(known.expires))
}

pub(super) fn pick_up(
    rows: &mut WorkingSet,
    command: &PickUpTip,
    now: Timestamp,
) -> Result<Outcome, Refusal> {
    let PickUpTip { key, reserve_pub, amount, planchets } = command;
    let tip_key = TipKey { tip_id: key.tip_id };
    let tip = rows.get::<Tips>(&tip_key).cloned().ok_or(Refusal::TipUnknown)?;
    // A repetition gets the same coins, however late.
    if let Some(known) = rows.get::<TipPickups>(key) {
        return Ok(Outcome::PickedUp(known.signatures.clone()));
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
    Ok(Outcome::PickedUp(None))
}

pub(super) fn record(rows: &mut WorkingSet, command: &RecordTipPickup) -> Result<Outcome, Refusal> {
    let known = rows.get::<TipPickups>(&command.key).cloned().ok_or(Refusal::TipUnknown)?;
    if known.signatures.is_none() {
        let row = TipPickupRow { signatures: Some(command.signatures.clone()), ..known };
        rows.update::<TipPickups>(&command.key, row);
    }
    Ok(Outcome::Done)
}
