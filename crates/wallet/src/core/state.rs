//! The wallet's records as plain values, and the changes that steps make to them.
//!
//! Steps never modify the state: they read it and return [`Change`]s. The driver makes these durable and
//! applies them here, in this order, before it sends the next request. So the file knows of every request
//! that was sent.

use std::collections::BTreeMap;

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::{Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::coin::{Coin, CoinStatus};
use super::discretion::{Discretion, REFRESH_DELAY_MAX};
use super::evidence::{Dispute, Evidence};
use super::exchange::{Denom, Exchange};
use super::payment::Payment;
use super::purchase::refunds::PickUp;
use super::purchase::{Order, OrderKey, Purchase};
use super::purse::{PurseIncome, PursePayment};
use super::recoup::Recoup;
use super::refresh::Refresh;
use super::refund::Refund;
use super::select::{Contribution, PaymentPlan};
use super::tip::Tip;
use super::withdraw::Withdrawal;
use super::{CoreError, Entropy};
use crate::core::error::{Result, bad_input};

pub(crate) use super::id::EvidenceId;
pub use super::id::OpId;

/// A task that the wallet completes in several steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalletOperation {
    /// Its number.
    pub id: OpId,
    /// When it began.
    pub(crate) created: Timestamp,
    /// When it ended, successfully or not. Nothing more happens to it after that.
    pub finished: Option<Timestamp>,
    /// Base URL of the exchange.
    pub(crate) exchange: String,
    /// Why it makes no progress, in plain words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Set while the exchange's latest answer about it was false. Nothing is written off; the request is sent
    /// again later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispute: Option<Dispute>,
    /// Its kind, with its record.
    pub kind: OpKind,
}

impl WalletOperation {
    pub(crate) fn new(id: OpId, created: Timestamp, exchange: &str, record: impl Into<OpKind>) -> Self {
        Self {
            id,
            created,
            finished: None,
            exchange: exchange.to_owned(),
            last_error: None,
            dispute: None,
            kind: record.into(),
        }
    }

    /// Returns whether it waits because the exchange's latest answer about it was false.
    pub(crate) fn is_disputed(&self) -> bool {
        self.finished.is_none() && self.dispute.is_some()
    }

    /// Lets it send its next request at once, whatever it waited for.
    pub(crate) fn go_on(&mut self) {
        self.last_error = None;
        self.dispute = None;
    }

    /// Ends it by the user's decision.
    pub(crate) fn end(&mut self, now: Timestamp) {
        self.finished = Some(now);
        self.go_on();
    }
}

/// The kinds of operations with their records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum OpKind {
    /// From a bank account to coins.
    Withdrawal(Box<Withdrawal>),
    /// Coins to a merchant or to a bank account.
    Payment(Box<Payment>),
    /// The remaining value of a coin to fresh coins.
    Refresh(Box<Refresh>),
    /// A coin of a revoked denomination back to its origin.
    Recoup(Box<Recoup>),
    /// A refund from a merchant.
    Refund(Box<Refund>),
    /// A merchant's order, paid through the merchant.
    Purchase(Box<Purchase>),
    /// A merchant's refund of a purchase, picked up at the merchant.
    PickUp(Box<PickUp>),
    /// A merchant's money to coins.
    Tip(Box<Tip>),
    /// Coins into a purse: money sent to somebody, or a request paid.
    PursePayment(Box<PursePayment>),
    /// Money from a purse: sent by somebody, or requested.
    PurseIncome(Box<PurseIncome>),
}

macro_rules! kinds {
    ($($kind:ident),*) => {
        $(impl From<$kind> for OpKind {
            fn from(record: $kind) -> Self {
                Self::$kind(Box::new(record))
            }
        })*
    };
}

kinds!(Withdrawal, Payment, Refresh, Recoup, Refund, Purchase, PickUp, Tip, PursePayment, PurseIncome);

/// A record that replaces the record of the same key, or is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An exchange, by base URL.
    Exchange(Box<Exchange>),
    /// An operation, by number.
    Operation(Box<WalletOperation>),
    /// A coin, by public key.
    Coin(Box<Coin>),
    /// Evidence of a false answer, by number.
    Evidence(Box<Evidence>),
    /// A merchant's order, by merchant and number.
    Order(Box<Order>),
}

/// The wallet's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalletState {
    /// Exchanges by base URL.
    pub exchanges: BTreeMap<String, Exchange>,
    /// Operations by number.
    pub operations: BTreeMap<OpId, WalletOperation>,
    /// Coins by public key.
    pub coins: BTreeMap<EddsaPublicKey, Coin>,
    /// False answers of exchanges by number.
    pub evidence: BTreeMap<EvidenceId, Evidence>,
    /// Orders that were claimed, by merchant and number.
    pub orders: BTreeMap<OrderKey, Order>,
}

impl WalletState {
    /// Applies a change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Exchange(exchange) => {
                self.exchanges.insert(exchange.base_url.clone(), *exchange);
            }
            Change::Operation(operation) => {
                self.operations.insert(operation.id, *operation);
            }
            Change::Coin(coin) => {
                self.coins.insert(coin.coin_pub, *coin);
            }
            Change::Evidence(evidence) => {
                self.evidence.insert(evidence.id, *evidence);
            }
            Change::Order(order) => {
                self.orders.insert(order.key(), *order);
            }
        }
    }

    /// All records, in an order in which they can be applied to an empty state.
    pub(crate) fn to_changes(&self) -> Vec<Change> {
        let exchanges = self.exchanges.values().map(|exchange| Change::Exchange(Box::new(exchange.clone())));
        let operations =
            self.operations.values().map(|operation| Change::Operation(Box::new(operation.clone())));
        let coins = self.coins.values().map(|coin| Change::Coin(Box::new(coin.clone())));
        let evidence = self.evidence.values().map(|evidence| Change::Evidence(Box::new(evidence.clone())));
        let orders = self.orders.values().map(|order| Change::Order(Box::new(order.clone())));
        exchanges.chain(operations).chain(coins).chain(evidence).chain(orders).collect()
    }

    /// The number for the next operation.
    pub(crate) fn next_id(&self) -> OpId {
        self.operations.last_key_value().map_or(1, |(id, _)| id + 1)
    }

    /// An operation.
    ///
    /// # Errors
    /// [`CoreError::UnknownOperation`].
    pub fn operation(&self, id: OpId) -> Result<&WalletOperation> {
        self.operations.get(&id).ok_or(CoreError::UnknownOperation(id))
    }

    /// An exchange.
    ///
    /// # Errors
    /// [`CoreError::UnknownExchange`].
    pub fn exchange(&self, base_url: &str) -> Result<&Exchange> {
        self.exchanges.get(base_url).ok_or_else(|| CoreError::UnknownExchange(base_url.to_owned()))
    }

    /// A coin.
    ///
    /// # Errors
    /// [`CoreError::UnknownCoin`].
    pub(crate) fn coin(&self, coin_pub: &EddsaPublicKey) -> Result<&Coin> {
        self.coins.get(coin_pub).ok_or(CoreError::UnknownCoin(*coin_pub))
    }

    /// A denomination of an exchange.
    ///
    /// # Errors
    /// [`CoreError::UnknownExchange`] or [`CoreError::UnknownDenomination`].
    pub(crate) fn denom(&self, exchange: &str, h_denom_pub: &HashCode) -> Result<&Denom> {
        self.exchange(exchange)?.denoms.get(h_denom_pub).ok_or(CoreError::UnknownDenomination(*h_denom_pub))
    }

    /// The changes that record the user's acceptance of an exchange's current terms.
    ///
    /// # Errors
    /// [`CoreError::UnknownExchange`].
    pub(crate) fn accept_terms(&self, base_url: &str) -> Result<Vec<Change>> {
        let mut exchange = self.exchange(base_url)?.clone();
        exchange.terms.accepted = Some(exchange.terms.version.clone());
        Ok(vec![Change::Exchange(Box::new(exchange))])
    }

    /// The changes that record what the user wants done for privacy.
    ///
    /// # Errors
    /// [`CoreError::UnknownExchange`], or [`CoreError::BadInput`] if the delay is too long.
    pub(crate) fn set_discretion(&self, base_url: &str, discretion: Discretion) -> Result<Vec<Change>> {
        if discretion.refresh_delay > REFRESH_DELAY_MAX {
            let reason = format!("it can be at most {REFRESH_DELAY_MAX}");
            return Err(bad_input("refresh delay", reason));
        }
        let mut exchange = self.exchange(base_url)?.clone();
        exchange.discretion = discretion;
        Ok(vec![Change::Exchange(Box::new(exchange))])
    }

    /// The operations that are not finished, oldest first.
    pub fn open_operations(&self) -> impl Iterator<Item = &WalletOperation> {
        self.operations.values().filter(|operation| operation.finished.is_none())
    }

    /// Returns whether a coin was issued by `exchange`.
    pub(crate) fn is_coin_of(&self, coin_pub: &EddsaPublicKey, exchange: &Exchange) -> bool {
        self.coin(coin_pub).is_ok_and(|coin| coin.exchange == exchange.base_url)
    }

    /// Returns the time until which a coin of `exchange` can be spent.
    pub(crate) fn spendable_until(
        &self,
        exchange: &Exchange,
        coin_pub: &EddsaPublicKey,
    ) -> Result<Timestamp> {
        Ok(exchange.denom(&self.coin(coin_pub)?.h_denom_pub)?.stamp_expire_deposit)
    }

    /// The coins of `exchange` that can be spent.
    pub(crate) fn fresh_coins<'a>(
        &'a self,
        exchange: &'a str,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a Coin> {
        self.coins.values().filter(move |coin| {
            coin.exchange == exchange
                && coin.status == CoinStatus::Fresh
                && !coin.remaining.is_zero()
                && self.denom(exchange, &coin.h_denom_pub).is_ok_and(|denom| denom.can_deposit(now))
        })
    }
}

/// A draft of changes. Later parts of a step see the earlier changes.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    base: &'a WalletState,
    exchanges: BTreeMap<String, Exchange>,
    operations: BTreeMap<OpId, WalletOperation>,
    coins: BTreeMap<EddsaPublicKey, Coin>,
    evidence: BTreeMap<EvidenceId, Evidence>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(base: &'a WalletState) -> Self {
        Self {
            base,
            exchanges: BTreeMap::new(),
            operations: BTreeMap::new(),
            coins: BTreeMap::new(),
            evidence: BTreeMap::new(),
        }
    }

    pub(crate) fn base(&self) -> &'a WalletState {
        self.base
    }

    pub(crate) fn next_id(&self) -> OpId {
        self.operations.last_key_value().map_or(0, |(id, _)| id + 1).max(self.base.next_id())
    }

    pub(crate) fn operation(&self, id: OpId) -> Result<&WalletOperation> {
        self.operations.get(&id).map_or_else(|| self.base.operation(id), Ok)
    }

    pub(crate) fn exchange(&self, base_url: &str) -> Result<&Exchange> {
        self.exchanges.get(base_url).map_or_else(|| self.base.exchange(base_url), Ok)
    }

    pub(crate) fn coin(&self, coin_pub: &EddsaPublicKey) -> Result<&Coin> {
        self.coins.get(coin_pub).map_or_else(|| self.base.coin(coin_pub), Ok)
    }

    pub(crate) fn coin_mut(&mut self, coin_pub: &EddsaPublicKey) -> Result<&mut Coin> {
        if !self.coins.contains_key(coin_pub) {
            self.coins.insert(*coin_pub, self.base.coin(coin_pub)?.clone());
        }
        self.coins.get_mut(coin_pub).ok_or(CoreError::UnknownCoin(*coin_pub))
    }

    pub(crate) fn exchange_mut(&mut self, base_url: &str) -> Result<&mut Exchange> {
        if !self.exchanges.contains_key(base_url) {
            self.exchanges.insert(base_url.to_owned(), self.base.exchange(base_url)?.clone());
        }
        self.exchanges.get_mut(base_url).ok_or_else(|| CoreError::UnknownExchange(base_url.to_owned()))
    }

    /// Adds a new operation. Returns its number.
    pub(crate) fn begin(&mut self, now: Timestamp, exchange: &str, record: impl Into<OpKind>) -> OpId {
        let id = self.next_id();
        self.put_operation(WalletOperation::new(id, now, exchange, record));
        id
    }

    /// Records that an exchange no longer issues a denomination.
    pub(crate) fn stop_offering(&mut self, exchange: &str, h_denom_pub: &HashCode) -> Result<()> {
        if let Some(denom) = self.exchange_mut(exchange)?.denoms.get_mut(h_denom_pub) {
            denom.offered = false;
        }
        Ok(())
    }

    /// Records that an exchange has revoked a denomination.
    pub(crate) fn revoke(&mut self, exchange: &str, h_denom_pub: &HashCode, now: Timestamp) -> Result<()> {
        if let Some(denom) = self.exchange_mut(exchange)?.denoms.get_mut(h_denom_pub) {
            denom.revoke(now);
        }
        Ok(())
    }

    pub(crate) fn put_operation(&mut self, operation: WalletOperation) {
        self.operations.insert(operation.id, operation);
    }

    pub(crate) fn next_evidence_id(&self) -> EvidenceId {
        let last = |map: &BTreeMap<EvidenceId, Evidence>| map.last_key_value().map_or(0, |(id, _)| *id);
        last(&self.evidence).max(last(&self.base.evidence)) + 1
    }

    pub(crate) fn put_evidence(&mut self, evidence: Evidence) {
        self.evidence.insert(evidence.id, evidence);
    }

    pub(crate) fn evidence_mut(&mut self, id: EvidenceId) -> Result<&mut Evidence> {
        let missing = || CoreError::Inconsistent(format!("there is no evidence {id}"));
        if !self.evidence.contains_key(&id) {
            let evidence = self.base.evidence.get(&id).ok_or_else(missing)?.clone();
            self.evidence.insert(id, evidence);
        }
        self.evidence.get_mut(&id).ok_or_else(missing)
    }

    /// All evidence, including the drafted records.
    pub(crate) fn evidence(&self) -> impl Iterator<Item = &Evidence> {
        let untouched = self.base.evidence.values().filter(|item| !self.evidence.contains_key(&item.id));
        untouched.chain(self.evidence.values())
    }

    pub(crate) fn put_coin(&mut self, coin: Coin) {
        self.coins.insert(coin.coin_pub, coin);
    }

    /// All coins, including the drafted ones.
    pub(crate) fn coins(&self) -> impl Iterator<Item = &Coin> {
        let untouched = self.base.coins.values().filter(|coin| !self.coins.contains_key(&coin.coin_pub));
        untouched.chain(self.coins.values())
    }

    /// All operations, including the drafted ones.
    pub(crate) fn operations(&self) -> impl Iterator<Item = &WalletOperation> {
        let untouched =
            self.base.operations.values().filter(|operation| !self.operations.contains_key(&operation.id));
        untouched.chain(self.operations.values())
    }

    /// Takes `amount` off a coin and marks it as used.
    pub(crate) fn debit_coin(&mut self, coin_pub: &EddsaPublicKey, amount: Money) -> Result<()> {
        let coin = self.coin_mut(coin_pub)?;
        coin.remaining = coin.remaining.checked_sub(amount)?;
        coin.status = CoinStatus::Used;
        Ok(())
    }

    /// Takes the coins of a plan, and returns the contributions in the random order in which they are sent.
    pub(crate) fn allocate(
        &mut self,
        plan: &PaymentPlan,
        entropy: &mut dyn Entropy,
    ) -> Result<Vec<Contribution>> {
        let mut contributions = plan.contributions.clone();
        entropy.shuffle(&mut contributions);
        for part in &contributions {
            self.debit_coin(&part.coin_pub, part.amount)?;
        }
        Ok(contributions)
    }

    /// Returns `amount` to a coin.
    ///
    /// A sum above the coin's value would create money, so it is an error.
    pub(crate) fn credit_coin(&mut self, coin_pub: &EddsaPublicKey, amount: Money) -> Result<()> {
        let coin = self.coin(coin_pub)?;
        let value = self.exchange(&coin.exchange)?.denom(&coin.h_denom_pub)?.value;
        let remaining = coin.remaining.checked_add(amount)?;
        if remaining > value {
            return Err(CoreError::Inconsistent(format!(
                "coin {coin_pub} would be worth more than its denomination"
            )));
        }
        self.coin_mut(coin_pub)?.remaining = remaining;
        Ok(())
    }

    pub(crate) fn into_changes(self) -> Vec<Change> {
        let exchanges = self.exchanges.into_values().map(|exchange| Change::Exchange(Box::new(exchange)));
        let operations =
            self.operations.into_values().map(|operation| Change::Operation(Box::new(operation)));
        let coins = self.coins.into_values().map(|coin| Change::Coin(Box::new(coin)));
        let evidence = self.evidence.into_values().map(|evidence| Change::Evidence(Box::new(evidence)));
        exchanges.chain(operations).chain(coins).chain(evidence).collect()
    }
}
