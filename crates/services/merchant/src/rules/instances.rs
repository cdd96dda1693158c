//! Creating, changing and deleting instances (merchant chapter 5).

use std::collections::BTreeSet;
use std::ops::Bound;

use batzen_engine::{Plan, WorkingSet};
use batzen_protocol::{Duration, Timestamp};
use batzen_tables::merchant::{
    InstanceAccountKey, InstanceAccountRow, InstanceAccounts, InstanceKey, InstanceRow, Instances, Orders,
};

use super::{ChangeInstance, CreateInstance, DeleteInstance, NewAccount, Outcome, Refusal, SetAuth};

pub(super) fn plan(id: &String, plan: &mut Plan) {
    plan.row::<Instances>(InstanceKey::new(id));
    plan.group::<InstanceAccounts>(InstanceAccounts::BY_INSTANCE, id);
}

pub(super) fn plan_accounts(id: &String, accounts: &[NewAccount], plan: &mut Plan) {
    self::plan(id, plan);
    for account in accounts {
        plan.row::<InstanceAccounts>(InstanceAccountKey { instance: id.clone(), h_wire: account.h_wire });
    }
}

/// The range of the index that has all orders of an instance.
fn orders_of(id: &String) -> (Vec<u8>, Vec<u8>) {
    let from = Orders::row_value(id, None);
    let to = Orders::row_value(id, Some(u64::MAX));
    (from, to)
}

pub(super) fn plan_deletion(id: &String, plan: &mut Plan) {
    self::plan(id, plan);
    let (from, to) = orders_of(id);
    plan.range::<Orders>(Orders::BY_ROW, from, to, 1);
}

/// The instance, if it was not deleted.
fn active<'a>(rows: &'a WorkingSet, id: &str) -> Result<&'a InstanceRow, Refusal> {
    match rows.get::<Instances>(&InstanceKey::new(id)) {
        None => Err(Refusal::InstanceUnknown),
        Some(row) if row.merchant_priv.is_none() => Err(Refusal::InstanceDeleted),
        Some(row) => Ok(row),
    }
}

pub(super) fn create(
    rows: &mut WorkingSet,
    command: &CreateInstance,
    now: Timestamp,
) -> Result<Outcome, Refusal> {
    let CreateInstance { id, row, accounts } = command;
    if let Some(known) = rows.get::<Instances>(&InstanceKey::new(id)) {
        if known.merchant_priv.is_none() {
            return Err(Refusal::InstanceDeleted);
        }
        // The keys were drawn for this command, so a repetition has others.
        let (merchant_pub, merchant_priv) = (known.merchant_pub, known.merchant_priv);
        let is_same = *known == InstanceRow { merchant_pub, merchant_priv, ..row.clone() };
        let group = rows.group::<InstanceAccounts>(InstanceAccounts::BY_INSTANCE, id);
        let have: BTreeSet<&str> =
            group.iter().filter(|(_, row)| row.active).map(|(_, row)| row.payto_uri.as_str()).collect();
        let want: BTreeSet<&str> = accounts.iter().map(|account| account.payto_uri.as_str()).collect();
        return if is_same && have == want { Ok(Outcome::Done) } else { Err(Refusal::InstanceExists) };
    }
    rows.insert::<Instances>(&InstanceKey::new(id), row.clone());
    set_accounts(rows, id, accounts, now);
    Ok(Outcome::Done)
}

const SECOND: Duration = Duration::from_micros(1_000_000);

/// Activates exactly these accounts. Known ones keep their salt, since contracts name its hash.
fn set_accounts(rows: &mut WorkingSet, id: &String, accounts: &[NewAccount], now: Timestamp) {
    let known: Vec<(InstanceAccountKey, InstanceAccountRow)> = rows
        .group::<InstanceAccounts>(InstanceAccounts::BY_INSTANCE, id)
        .into_iter()
        .map(|(key, row)| (key.clone(), row.clone()))
        .collect();
    for (key, row) in &known {
        let active = accounts.iter().any(|account| account.payto_uri == row.payto_uri);
        if active != row.active {
            rows.update::<InstanceAccounts>(key, InstanceAccountRow { active, ..row.clone() });
        }
    }
    // Each has a second of its own, so that accounts keep the order in which the shop named them: orders use the first.
    let mut next =
        known.iter().map(|(_, row)| row.added.saturating_add(SECOND)).max().unwrap_or(now).max(now);
    for (n, NewAccount { payto_uri, salt, h_wire }) in accounts.iter().enumerate() {
        let is_known = known.iter().any(|(_, row)| row.payto_uri == *payto_uri)
            || accounts[..n].iter().any(|earlier| earlier.payto_uri == *payto_uri);
        if !is_known {
            let key = InstanceAccountKey { instance: id.clone(), h_wire: *h_wire };
            let (payto_uri, salt) = (payto_uri.clone(), *salt);
            let added = next;
            next = next.saturating_add(SECOND);
            rows.insert::<InstanceAccounts>(
                &key,
                InstanceAccountRow { payto_uri, salt, active: true, added },
            );
        }
    }
}

pub(super) fn change(
    rows: &mut WorkingSet,
    command: &ChangeInstance,
    now: Timestamp,
) -> Result<Outcome, Refusal> {
    let ChangeInstance { id, row, accounts } = command;
    let known = active(rows, id)?;
    let row = InstanceRow {
        merchant_pub: known.merchant_pub,
        merchant_priv: known.merchant_priv,
        token_hash: known.token_hash,
        ..row.clone()
    };
    rows.update::<Instances>(&InstanceKey::new(id), row);
    set_accounts(rows, id, accounts, now);
    Ok(Outcome::Done)
}

pub(super) fn set_auth(rows: &mut WorkingSet, command: &SetAuth) -> Result<Outcome, Refusal> {
    let row = InstanceRow { token_hash: command.token_hash, ..active(rows, &command.id)?.clone() };
    rows.update::<Instances>(&InstanceKey::new(&command.id), row);
    Ok(Outcome::Done)
}

pub(super) fn delete(rows: &mut WorkingSet, command: &DeleteInstance) -> Result<Outcome, Refusal> {
    let DeleteInstance { id, purge } = command;
    let key = InstanceKey::new(id);
    let known = rows.get::<Instances>(&key).ok_or(Refusal::InstanceUnknown)?;
    if !purge {
        let row = InstanceRow { merchant_priv: None, ..known.clone() };
        rows.update::<Instances>(&key, row);
        return Ok(Outcome::Done);
    }
    if !rows.range::<Orders>(Orders::BY_ROW, &orders_of(id).0).is_empty() {
        return Err(Refusal::OrdersLeft);
    }
    let accounts: Vec<InstanceAccountKey> = rows
        .group::<InstanceAccounts>(InstanceAccounts::BY_INSTANCE, id)
        .into_iter()
        .map(|(key, _)| key.clone())
        .collect();
    for account in &accounts {
        rows.delete::<InstanceAccounts>(account);
    }
    rows.delete::<Instances>(&key);
    Ok(Outcome::Done)
}

/// All orders of an instance, as a range of [`Orders::BY_ROW`].
#[must_use]
pub fn order_range(id: &String) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let (from, to) = orders_of(id);
    (Bound::Included(from), Bound::Excluded(to))
}
