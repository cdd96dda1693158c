//! Leaves that an exchange's statements must count, by this wallet's records.

use std::collections::{BTreeMap, BTreeSet};

use batzen_crypto::{CoinSecrets, EddsaPublicKey, HashCode, ShortHash};
use batzen_protocol::liabilities::evidence::{is_before, is_due};
use batzen_protocol::liabilities::{CLOCK_SKEW, Head, Kind, Part, Receipt, Statement, leaf};
use batzen_protocol::{Amount, MoneySum, Timestamp};
use serde::Serialize;

use super::coin::{Coin, CoinSource};
use super::payment::PaymentStage;
use super::planchet::Planchet;
use super::purchase::PurchaseStage;
use super::purse::PartState;
use super::refresh::RefreshStage;
use super::state::{Change, OpId, OpKind, WalletState};
use crate::core::error::Result;

/// The origin of a leaf.
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
    /// Returns whether the exchange knows anyway whose it is: the owner of the bank account that the money
    /// came from.
    #[must_use]
    pub(crate) const fn is_known(self) -> bool {
        matches!(self, Self::Withdrawal)
    }
}

/// A leaf that an exchange must publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The operation that made it. The exchange can link the leaves of one operation anyway.
    pub(crate) operation: OpId,
    pub(crate) origin: Origin,
    pub(crate) coin_pub: EddsaPublicKey,
    /// The coin's denomination.
    pub(crate) h_denom_pub: HashCode,
    /// The tree in which it is.
    pub(crate) kind: Kind,
    pub(crate) leaf: ShortHash,
    /// The amount that it counts.
    pub(crate) sum: MoneySum,
    /// When its operation began.
    pub(crate) begun: Timestamp,
    /// When the wallet knew that it was made.
    pub(crate) time: Timestamp,
    /// Issued coins only: the planchet's hash.
    pub(crate) h_coin_ev: Option<HashCode>,
    /// The exchange's receipt.
    pub(crate) receipt: Option<Box<Receipt>>,
}

impl Expected {
    /// The earliest time at which it may have been made.
    pub(crate) fn earliest(&self) -> Timestamp {
        match &self.receipt {
            Some(receipt) => receipt.timestamp,
            None => self.begun.saturating_sub(CLOCK_SKEW),
        }
    }

    /// The latest time at which it may have been made.
    pub(crate) fn latest(&self) -> Timestamp {
        match &self.receipt {
            Some(receipt) => receipt.timestamp,
            None => self.time.saturating_add(CLOCK_SKEW),
        }
    }
}

/// The hash of a coin's planchet, as it was signed.
fn h_coin_ev(state: &WalletState, coin: &Coin) -> Result<HashCode> {
    let denom = state.denom(&coin.exchange, &coin.h_denom_pub)?;
    let secrets = CoinSecrets { coin_priv: coin.coin_priv.clone(), blinding: coin.blinding.clone() };
    let h_age = coin.h_age()?;
    Ok(Planchet::new(secrets, denom, coin.cs.as_ref(), h_age.as_ref())?.h_coin_ev)
}

/// Everything that an exchange must count by the wallet's records: signatures on its coins, and their uses.
///
/// # Errors
/// If records contradict each other.
pub(crate) fn expected(state: &WalletState, exchange: &str) -> Result<Vec<Expected>> {
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
        let mut add = |coin_pub: &EddsaPublicKey, origin, leaf, amount, time| -> Result<()> {
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

/// The statements that a wallet has fetched, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The statements, without gaps.
    pub(crate) statements: Vec<Statement>,
    /// Number of epochs that there are.
    pub(crate) epochs: u64,
}

impl Chain {
    /// The epochs in which something of this time may be: up to the first that must count it.
    pub(crate) fn candidates(&self, item: &Expected) -> impl Iterator<Item = &Statement> {
        let (earliest, latest) = (item.earliest(), item.latest());
        let mut is_over = false;
        self.statements
            .iter()
            .filter(move |statement| !is_before(statement.statement.taken, earliest))
            .take_while(move |statement| {
                !std::mem::replace(&mut is_over, is_due(statement.statement.end, latest))
            })
    }

    /// The tree of an epoch in which something would be, unless it has no leaves.
    pub(crate) fn part(&self, statement: &Statement, item: &Expected) -> Option<Part> {
        let part = statement.statement.entry(&item.h_denom_pub)?.part(item.kind);
        (part.root.count > 0).then_some(*part)
    }
}

/// An epoch with at most this many leaves is fetched as a whole: about six megabytes.
pub(crate) const WHOLE_LEAVES_MAX: u64 = 100_000;

/// The plan of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The epochs of which everything is fetched.
    pub whole: BTreeSet<u64>,
    /// The leaves to look for in the other epochs, by number: one group for each connection.
    pub groups: Vec<Vec<usize>>,
    /// The leaves that are not looked for, since the server of the buckets would learn too much.
    pub skipped: BTreeSet<usize>,
    /// The fewest leaves among which one that is looked for in them is hidden.
    pub(crate) hidden_among: Option<u64>,
}

/// Decides what to fetch. `is_seen`: somebody sees what is fetched. Then large epochs are not fetched as a whole, and only
/// what the exchange can link anyway is looked for in them, unless the user wants all of it (`payments`); and nothing in
/// trees with buckets that are too small.
#[must_use]
pub(crate) fn plan(chain: &Chain, expected: &[Expected], payments: bool, is_seen: bool) -> Plan {
    let mut plan = Plan::default();
    let mut large = BTreeSet::new();
    let wanted: BTreeSet<u64> = expected
        .iter()
        .flat_map(|item| chain.candidates(item))
        .map(|statement| statement.statement.epoch)
        .collect();
    for body in chain.statements.iter().map(|statement| &statement.statement) {
        let parts = body.denominations.iter().flat_map(|entry| Kind::ALL.map(|kind| entry.part(kind)));
        let leaves = parts.fold(0u64, |sum, part| sum.saturating_add(part.root.count));
        if !wanted.contains(&body.epoch) {
            // It cannot have anything of this wallet.
        } else if is_seen && leaves > WHOLE_LEAVES_MAX {
            large.insert(body.epoch);
        } else {
            plan.whole.insert(body.epoch);
        }
    }
    // What belongs to one operation can be linked anyway, and goes over one connection.
    let mut groups: BTreeMap<(OpId, Kind), Vec<usize>> = BTreeMap::new();
    for (n, item) in expected.iter().enumerate() {
        let parts: Vec<Part> = chain
            .candidates(item)
            .filter(|statement| large.contains(&statement.statement.epoch))
            .filter_map(|statement| chain.part(statement, item))
            .collect();
        if parts.is_empty() {
            continue;
        }
        if !parts.iter().all(Part::hides_leaves) || !(item.origin.is_known() || payments) {
            plan.skipped.insert(n);
            continue;
        }
        let fewest = parts.iter().map(Part::hidden_among).min();
        plan.hidden_among = plan.hidden_among.into_iter().chain(fewest).min();
        groups.entry((item.operation, item.kind)).or_default().push(n);
    }
    plan.groups = groups.into_values().collect();
    plan
}

/// Keeps receipts with their coins.
#[must_use]
pub(crate) fn keep_receipts(state: &WalletState, receipts: Vec<(EddsaPublicKey, Receipt)>) -> Vec<Change> {
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
pub(crate) fn keep_head(state: &WalletState, exchange: &str, head: Head) -> Result<Vec<Change>> {
    let mut record = state.exchange(exchange)?.clone();
    if record.liabilities.as_ref().is_some_and(|known| known.epoch >= head.epoch) {
        return Ok(Vec::new());
    }
    record.liabilities = Some(Box::new(head));
    Ok(vec![Change::Exchange(Box::new(record))])
}

/// The result for one leaf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// The operation that made it.
    pub operation: OpId,
    pub(crate) origin: Origin,
    pub(crate) coin_pub: EddsaPublicKey,
    /// The amount that it counts.
    pub amount: String,
    /// When it was made.
    pub time: Timestamp,
    /// The epoch that counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) epoch: Option<u64>,
    /// Whether the exchange has confirmed it, so that it can be proved if it is missing.
    pub has_receipt: bool,
}

/// The report of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The exchange.
    pub exchange: String,
    /// Number of epochs that there are.
    pub epochs: u64,
    /// The end of the last one.
    pub end: Option<Timestamp>,
    /// The debt for all its coins that the exchange states.
    pub outstanding: Option<String>,
    /// Whether the auditor has confirmed the last epoch, if one was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
    /// The leaves that are counted.
    pub counted: Vec<Item>,
    /// The leaves that the last epoch need not count yet.
    pub not_due: Vec<Item>,
    /// The leaves that were not looked for, since the exchange would learn too much.
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
    /// Number of bytes of buckets that were fetched.
    pub bytes: u64,
    /// Frauds that can be proved.
    pub frauds: Vec<String>,
}

impl Expected {
    /// Returns the result for it.
    pub(crate) fn item(&self, currency: batzen_protocol::Currency, epoch: Option<u64>) -> Item {
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

#[cfg(test)]
mod tests {
    use batzen_crypto::EddsaSignature;
    use batzen_protocol::liabilities::statement::VERSION;
    use batzen_protocol::liabilities::{Body, Entry, Node, SigningKey};

    use super::*;

    const HOUR: u64 = 3_600;
    const DENOM: HashCode = HashCode::from_bytes([3; 64]);

    /// An epoch of a day with trees of these sizes: leaves issued and redeemed.
    fn statement(epoch: u64, issued: (u64, u8), redeemed: (u64, u8)) -> Statement {
        let part = |(count, bits)| Part { bits, root: Node { count, ..Node::empty() }, ..Part::empty() };
        let key = EddsaPublicKey::from_bytes([1; 32]);
        let none = EddsaSignature::from_bytes([0; 64]);
        let entry = Entry {
            h_denom_pub: DENOM,
            value: MoneySum::ZERO,
            until: Timestamp::NEVER,
            issued: part(issued),
            redeemed: part(redeemed),
            returned: Part::empty(),
        };
        let at = |hours| Timestamp::from_secs(hours * HOUR);
        let body = Body {
            version: VERSION,
            master_pub: key,
            currency: "KUDOS".parse().expect("a currency"),
            epoch,
            start: at((epoch - 1) * 24),
            end: at(epoch * 24),
            taken: at(epoch * 24),
            previous: HashCode::ZERO,
            denominations: vec![entry],
        };
        let (start, end) = (Timestamp::ZERO, Timestamp::NEVER);
        let signing_key =
            SigningKey { key, stamp_start: start, stamp_expire: end, stamp_end: end, master_sig: none };
        Statement { statement: body, exchange_sig: none, signing_key }
    }

    fn item(operation: OpId, origin: Origin, hours: u64) -> Expected {
        let kind =
            if matches!(origin, Origin::Payment | Origin::Melt) { Kind::Redeemed } else { Kind::Issued };
        Expected {
            operation,
            origin,
            coin_pub: EddsaPublicKey::from_bytes([2; 32]),
            h_denom_pub: DENOM,
            kind,
            leaf: ShortHash::from_bytes([7; 32]),
            sum: MoneySum::ZERO,
            begun: Timestamp::from_secs(hours * HOUR),
            time: Timestamp::from_secs(hours * HOUR),
            h_coin_ev: None,
            receipt: None,
        }
    }

    fn chain(statements: Vec<Statement>) -> Chain {
        Chain { epochs: statements.len() as u64, statements }
    }

    #[test]
    fn something_is_looked_for_until_the_first_epoch_that_must_count_it() {
        let chain = chain((1..=5).map(|epoch| statement(epoch, (5, 0), (0, 0))).collect());
        let epochs = |hours| -> Vec<u64> {
            let item = item(1, Origin::Withdrawal, hours);
            chain.candidates(&item).map(|statement| statement.statement.epoch).collect()
        };
        assert_eq!(epochs(30), [2]);
        // Perhaps it was made before an epoch was read, or so late that the next may count it.
        assert_eq!(epochs(24), [1, 2]);
        assert_eq!(epochs(47), [2, 3]);
        assert!(epochs(200).is_empty());
    }

    #[test]
    fn small_epochs_are_fetched_as_a_whole() {
        let chain = chain(vec![statement(1, (60_000, 5), (40_000, 5)), statement(2, (5, 0), (5, 0))]);
        let items = [item(1, Origin::Withdrawal, 3), item(2, Origin::Payment, 3)];
        let plan = plan(&chain, &items, false, true);
        assert_eq!(plan, Plan { whole: BTreeSet::from([1]), ..Plan::default() });
    }

    #[test]
    fn in_large_epochs_only_what_is_known_is_looked_for() {
        let chain = chain(vec![statement(1, (1 << 20, 10), (1 << 20, 9))]);
        let items = [
            item(1, Origin::Withdrawal, 3),
            item(1, Origin::Withdrawal, 3),
            item(2, Origin::Refresh, 3),
            item(3, Origin::Payment, 3),
            item(4, Origin::Tip, 3),
            item(5, Origin::Melt, 3),
            item(6, Origin::Withdrawal, 3),
        ];
        let cautious = plan(&chain, &items, false, true);
        assert_eq!(cautious.groups, [vec![0, 1], vec![6]], "one connection for each operation");
        assert_eq!(cautious.skipped, BTreeSet::from([2, 3, 4, 5]));
        assert_eq!((cautious.whole.len(), cautious.hidden_among), (0, Some(1_024)));
        let all = plan(&chain, &items, true, true);
        assert_eq!(all.groups.len(), 6);
        assert!(all.skipped.is_empty());
        // Nobody sees what is read from a directory.
        let local = plan(&chain, &items, false, false);
        assert_eq!(local, Plan { whole: BTreeSet::from([1]), ..Plan::default() });
    }

    #[test]
    fn nothing_is_looked_for_in_buckets_that_are_too_small() {
        let chain = chain(vec![statement(1, (1 << 20, 11), (5, 0))]);
        let items = [item(1, Origin::Withdrawal, 3), item(2, Origin::Payment, 3)];
        let plan = plan(&chain, &items, true, true);
        assert_eq!(plan.skipped, BTreeSet::from([0]));
        assert_eq!(plan.groups, [vec![1]]);
    }
}
