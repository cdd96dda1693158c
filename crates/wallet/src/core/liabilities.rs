//! What an exchange's statements must count, by this wallet's records.

use batzen_crypto::{CoinSecrets, EddsaPublicKey, HashCode, ShortHash};
use batzen_liabilities::{CLOCK_SKEW, Head, Kind, Receipt, leaf};
use batzen_protocol::{Amount, MoneySum, Timestamp};
use serde::Serialize;

use super::CoreError;
use super::coin::{Coin, CoinSource};
use super::payment::PaymentStage;
use super::planchet::Planchet;
use super::purchase::PurchaseStage;
use super::purse::PartState;
use super::refresh::RefreshStage;
use super::state::{Change, OpId, OpKind, WalletState};

/// What made a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// A coin that was withdrawn.
    Withdrawal,
    /// A coin that a shop gave.
    Tip,
    /// A coin that came from a refresh.
    Refresh,
    /// A coin that was melted.
    Melt,
    /// A coin that paid.
    Payment,
}

impl Origin {
    /// Whether the exchange knows anyway whose it is: the owner of the bank account that the money came from.
    #[must_use]
    pub const fn is_known(self) -> bool {
        matches!(self, Self::Withdrawal)
    }
}

/// A leaf that an exchange must publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The operation that made it. The exchange can link the leaves of one operation anyway.
    pub operation: OpId,
    /// What made it.
    pub origin: Origin,
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// The coin's denomination.
    pub h_denom_pub: HashCode,
    /// The tree in which it is.
    pub kind: Kind,
    /// The leaf's hash.
    pub leaf: ShortHash,
    /// How much it counts.
    pub sum: MoneySum,
    /// When its operation began.
    pub begun: Timestamp,
    /// When the wallet knew that it was made.
    pub time: Timestamp,
    /// Issued coins only: the planchet's hash.
    pub h_coin_ev: Option<HashCode>,
    /// The exchange's receipt.
    pub receipt: Option<Box<Receipt>>,
}

impl Expected {
    /// The earliest time at which it may have been made.
    #[must_use]
    pub fn earliest(&self) -> Timestamp {
        match &self.receipt {
            Some(receipt) => receipt.timestamp,
            None => self.begun.saturating_sub(CLOCK_SKEW),
        }
    }

    /// The latest time at which it may have been made.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        match &self.receipt {
            Some(receipt) => receipt.timestamp,
            None => self.time.saturating_add(CLOCK_SKEW),
        }
    }
}

/// The hash of a coin's planchet, as it was signed.
fn h_coin_ev(state: &WalletState, coin: &Coin) -> Result<HashCode, CoreError> {
    let denom = state.denom(&coin.exchange, &coin.h_denom_pub)?;
    let secrets = CoinSecrets { coin_priv: coin.coin_priv.clone(), blinding: coin.blinding.clone() };
    let h_age = coin.h_age()?;
    Ok(Planchet::new(secrets, denom, coin.cs.as_ref(), h_age.as_ref())?.h_coin_ev)
}

/// Everything that an exchange must count by the wallet's records: signatures on its coins, and their uses.
///
/// # Errors
/// If records contradict each other.
pub fn expected(state: &WalletState, exchange: &str) -> Result<Vec<Expected>, CoreError> {
    let mut all = Vec::new();
    for coin in state.coins.values().filter(|coin| coin.exchange == exchange) {
        let h_coin_ev = h_coin_ev(state, coin)?;
        let origin = match coin.source {
            CoinSource::Refresh { .. } => Origin::Refresh,
            CoinSource::Withdrawal { .. } => Origin::Withdrawal,
            CoinSource::Tip { .. } => Origin::Tip,
        };
        all.push(Expected {
            operation: coin.source.operation(),
            origin,
            coin_pub: coin.coin_pub,
            h_denom_pub: coin.h_denom_pub,
            kind: Kind::Issued,
            leaf: leaf::issued(&coin.h_denom_pub, &h_coin_ev),
            sum: state.denom(exchange, &coin.h_denom_pub)?.value.into(),
            begun: state.operation(coin.source.operation())?.created,
            time: coin.created,
            h_coin_ev: Some(h_coin_ev),
            receipt: coin.receipt.clone(),
        });
    }
    for operation in state.operations.values() {
        let mut add = |coin_pub: &EddsaPublicKey, origin, leaf, amount, time| -> Result<(), CoreError> {
            let coin = state.coin(coin_pub)?;
            if coin.exchange == exchange {
                all.push(Expected {
                    operation: operation.id,
                    origin,
                    coin_pub: *coin_pub,
                    h_denom_pub: coin.h_denom_pub,
                    kind: Kind::Redeemed,
                    leaf,
                    sum: MoneySum::from(amount),
                    begun: operation.created,
                    time,
                    h_coin_ev: None,
                    receipt: None,
                });
            }
            Ok(())
        };
        let ended = operation.finished.unwrap_or(operation.created);
        match &operation.kind {
            OpKind::Payment(payment) if payment.stage == PaymentStage::Done => {
                for part in &payment.coins {
                    let leaf =
                        leaf::deposit(&part.coin_pub, &payment.merchant_pub, &payment.h_contract_terms);
                    let time = payment.exchange_timestamp.unwrap_or(ended);
                    add(&part.coin_pub, Origin::Payment, leaf, part.amount, time)?;
                }
            }
            OpKind::Purchase(purchase) if purchase.stage == PurchaseStage::Done => {
                let terms = purchase.terms();
                for part in purchase.spent() {
                    let leaf = leaf::deposit(&part.coin_pub, &terms.merchant_pub, &terms.h_contract_terms);
                    add(&part.coin_pub, Origin::Payment, leaf, part.amount, ended)?;
                }
            }
            OpKind::PursePayment(payment) if operation.finished.is_some() => {
                for part in payment.coins.iter().filter(|part| part.state == PartState::Spent) {
                    let leaf = leaf::purse_deposit(&part.coin_pub, &payment.purse_pub);
                    add(&part.coin_pub, Origin::Payment, leaf, part.amount, ended)?;
                }
            }
            OpKind::Refresh(refresh) if refresh.stage == RefreshStage::Done => {
                if let Some(rc) = &refresh.rc {
                    let leaf = leaf::melt(&refresh.old_coin_pub, rc);
                    add(&refresh.old_coin_pub, Origin::Melt, leaf, refresh.amount, ended)?;
                }
            }
            _ => {}
        }
    }
    Ok(all)
}

/// Keeps receipts with their coins.
#[must_use]
pub fn keep_receipts(state: &WalletState, receipts: Vec<(EddsaPublicKey, Receipt)>) -> Vec<Change> {
    let keep = |(coin_pub, receipt)| {
        let coin = state.coins.get(&coin_pub)?;
        Some(Change::Coin(Box::new(Coin { receipt: Some(Box::new(receipt)), ..coin.clone() })))
    };
    receipts.into_iter().filter_map(keep).collect()
}

/// Keeps what was signed of the last statement that the wallet has checked.
///
/// # Errors
/// If the exchange is unknown.
pub fn keep_head(state: &WalletState, exchange: &str, head: Head) -> Result<Vec<Change>, CoreError> {
    let mut record = state.exchange(exchange)?.clone();
    if record.liabilities.as_ref().is_some_and(|known| known.epoch >= head.epoch) {
        return Ok(Vec::new());
    }
    record.liabilities = Some(Box::new(head));
    Ok(vec![Change::Exchange(Box::new(record))])
}

/// What was found about one leaf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// The operation that made it.
    pub operation: OpId,
    /// What made it.
    pub origin: Origin,
    /// The coin.
    pub coin_pub: EddsaPublicKey,
    /// How much it counts.
    pub amount: String,
    /// When it was made.
    pub time: Timestamp,
    /// The epoch that counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Whether the exchange has confirmed it, so that it can be proved if it is missing.
    pub has_receipt: bool,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The exchange.
    pub exchange: String,
    /// How many epochs there are.
    pub epochs: u64,
    /// The end of the last one.
    pub end: Option<Timestamp>,
    /// What the exchange says it owes for all its coins.
    pub outstanding: Option<String>,
    /// Whether the auditor has confirmed the last epoch, if one was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
    /// What is counted.
    pub counted: Vec<Item>,
    /// What the last epoch need not count yet.
    pub not_due: Vec<Item>,
    /// What was not looked for, since the exchange would learn too much.
    pub skipped: Vec<Item>,
    /// Signatures that are not counted, or with another amount: the exchange says that it owes less than it does.
    pub missing: Vec<Item>,
    /// Uses of coins that are not counted. Perhaps a shop has not handed them in yet; and whoever leaves them out says that
    /// it owes more than it does.
    pub uncounted: Vec<Item>,
    /// Coins for which the exchange gives no receipt.
    pub unconfirmed: Vec<Item>,
    /// The fewest leaves among which one that was looked for is hidden. None if whole epochs were fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_among: Option<u64>,
    /// How many bytes of buckets were fetched.
    pub bytes: u64,
    /// Frauds that can be proved.
    pub frauds: Vec<String>,
}

impl Expected {
    /// What was found about it.
    #[must_use]
    pub fn item(&self, currency: batzen_protocol::Currency, epoch: Option<u64>) -> Item {
        let amount = match u64::try_from(self.sum.value()) {
            Ok(value) => batzen_protocol::Money::new(value, self.sum.fraction())
                .map_or_else(|_| self.sum.to_string(), |money| Amount::to_string(&money.of(currency))),
            Err(_) => self.sum.to_string(),
        };
        Item {
            operation: self.operation,
            origin: self.origin,
            coin_pub: self.coin_pub,
            amount,
            time: self.time,
            epoch,
            has_receipt: self.receipt.is_some(),
        }
    }
}
