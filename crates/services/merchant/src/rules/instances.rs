//! Creating, changing and deleting instances (merchant chapter 5).

use std::collections::BTreeSet;
use std::ops::Bound;

use batzen_crypto::{HashCode, WireSalt};
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Duration, Timestamp};
use batzen_tables::merchant::{
    InstanceAccountKey, InstanceAccountRow, InstanceAccounts, InstanceKey, InstanceRow, Instances, Orders,
    row_value,
};

use super::{MerchantRules, Refusal};

/// A bank account that an instance shall have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAccount {
    /// The account.
    pub payto_uri: String,
    /// The salt, if the account is new.
    pub salt: WireSalt,
    /// The account's hash with this salt.
    pub h_wire: HashCode,
}

/// Creates an instance. Idempotent.
#[derive(Clone, Debug)]
pub struct CreateInstance {
    /// Its id.
    pub id: String,
    /// Its row, if it is new.
    pub row: InstanceRow,
    /// Its accounts.
    pub accounts: Vec<NewAccount>,
}

impl Command<MerchantRules> for CreateInstance {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_accounts(&self.id, &self.accounts, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        let CreateInstance { id, row, accounts } = self;
        if let Some(known) = rows.get::<Instances>(&InstanceKey::new(id)) {
            if known.merchant_priv.is_none() {
                return Err(Refusal::InstanceDeleted);
            }
            // The keys were drawn for this self, so a repetition has others.
            let (merchant_pub, merchant_priv) = (known.merchant_pub, known.merchant_priv);
            let is_same = *known == InstanceRow { merchant_pub, merchant_priv, ..row.clone() };
            let group = rows.group::<InstanceAccounts>(InstanceAccounts::BY_INSTANCE, id);
            let have: BTreeSet<&str> =
                group.iter().filter(|(_, row)| row.active).map(|(_, row)| row.payto_uri.as_str()).collect();
            let want: BTreeSet<&str> = accounts.iter().map(|account| account.payto_uri.as_str()).collect();
            return if is_same && have == want { Ok(()) } else { Err(Refusal::InstanceExists) };
        }
        rows.insert::<Instances>(&InstanceKey::new(id), row.clone());
        set_accounts(rows, id, accounts, now);
        Ok(())
    }
}

/// Changes an instance; its keys and its access token stay.
#[derive(Clone, Debug)]
pub struct ChangeInstance {
    /// Its id.
    pub id: String,
    /// Its new row, of which keys and token are ignored.
    pub row: InstanceRow,
    /// Its active accounts.
    pub accounts: Vec<NewAccount>,
}

impl Command<MerchantRules> for ChangeInstance {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_accounts(&self.id, &self.accounts, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Result<(), Refusal> {
        let ChangeInstance { id, row, accounts } = self;
        let known = active(rows, id)?;
        let row = InstanceRow {
            merchant_pub: known.merchant_pub,
            merchant_priv: known.merchant_priv,
            token_hash: known.token_hash,
            ..row.clone()
        };
        rows.update::<Instances>(&InstanceKey::new(id), row);
        set_accounts(rows, id, accounts, now);
        Ok(())
    }
}

/// Changes who may use an instance.
#[derive(Clone, Debug)]
pub(crate) struct SetAuth {
    pub(crate) id: String,
    /// Salted hash of the new token; none if a proxy decides.
    pub(crate) token_hash: Option<HashCode>,
}

impl Command<MerchantRules> for SetAuth {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_instance(&self.id, plan);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let row = InstanceRow { token_hash: self.token_hash, ..active(rows, &self.id)?.clone() };
        rows.update::<Instances>(&InstanceKey::new(&self.id), row);
        Ok(())
    }
}

/// Destroys an instance's private key, and with `purge` forgets the instance, which must have no orders left.
#[derive(Clone, Debug)]
pub struct DeleteInstance {
    /// Its id.
    pub id: String,
    /// Whether to forget it.
    pub purge: bool,
}

impl Command<MerchantRules> for DeleteInstance {
    type Answer = ();

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan_instance(&self.id, plan);
        let (from, to) = orders_of(&self.id);
        plan.range::<Orders>(Orders::BY_ROW, from, to, 1);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<(), Refusal> {
        let DeleteInstance { id, purge } = self;
        let key = InstanceKey::new(id);
        let known = rows.get::<Instances>(&key).ok_or(Refusal::InstanceUnknown)?;
        if !purge {
            let row = InstanceRow { merchant_priv: None, ..known.clone() };
            rows.update::<Instances>(&key, row);
            return Ok(());
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
        Ok(())
    }
}

pub(super) fn plan_instance(id: &String, plan: &mut Plan) {
    plan.row::<Instances>(InstanceKey::new(id));
    plan.group::<InstanceAccounts>(InstanceAccounts::BY_INSTANCE, id);
}

pub(super) fn plan_accounts(id: &String, accounts: &[NewAccount], plan: &mut Plan) {
    plan_instance(id, plan);
    for account in accounts {
        plan.row::<InstanceAccounts>(InstanceAccountKey { instance: id.clone(), h_wire: account.h_wire });
    }
}

/// The range of the index that has all orders of an instance.
fn orders_of(id: &String) -> (Vec<u8>, Vec<u8>) {
    let from = row_value(id, None);
    let to = row_value(id, Some(u64::MAX));
    (from, to)
}

/// The instance, if it was not deleted.
fn active<'a>(rows: &'a WorkingSet, id: &str) -> Result<&'a InstanceRow, Refusal> {
    match rows.get::<Instances>(&InstanceKey::new(id)) {
        None => Err(Refusal::InstanceUnknown),
        Some(row) if row.merchant_priv.is_none() => Err(Refusal::InstanceDeleted),
        Some(row) => Ok(row),
    }
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

/// All orders of an instance, as a range of [`Orders::BY_ROW`].
#[must_use]
pub(crate) fn order_range(id: &String) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let (from, to) = orders_of(id);
    (Bound::Included(from), Bound::Excluded(to))
}
