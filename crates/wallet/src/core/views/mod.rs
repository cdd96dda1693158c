//! Balances and history for the user: amounts and plain words.

mod effect;
mod left;
mod wait;

use std::collections::BTreeMap;

use batzen_crypto::EddsaPublicKey;
use batzen_protocol::{Amount, Currency, Money, Timestamp};
use serde::Serialize;

use super::coin::{Coin, CoinStatus};
use super::evidence::EvidenceId;
use super::exchange::{Denom, Exchange};
use super::payment::PaymentStage;
use super::purchase::refunds::{self, PickUpStage};
use super::purchase::{PurchaseStage, pay as purchase};
use super::purse::{Direction, IncomeStage, PayStage};
use super::refresh::{RefreshReason, RefreshStage, is_busy};
use super::refund::{RefundItem, RefundState};
use super::state::{Draft, OpId, OpKind, WalletOperation, WalletState};
use super::tip::TipStage;
use super::withdraw::{Origin, PlanchetState, WithdrawStage};
use super::{CoreError, purse};
use effect::{effect, losses, signed, summary_row};
pub use left::{Left, left};
pub use wait::{Wait, wait};

/// The money at one exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExchangeBalance {
    /// Base URL.
    pub exchange: String,
    /// Can be spent now.
    pub available: Amount,
    /// Incoming: withdrawals, change, refunds.
    pub pending_incoming: Amount,
    /// Spent, but not confirmed by the exchange yet, or sent to somebody who has not accepted it yet.
    pub pending_outgoing: Amount,
    /// Left on used coins, and too little to become a coin.
    pub dust: Amount,
    /// Held by operations about which the exchange gave a false answer. Not written off.
    pub disputed: Amount,
}

/// All money of one currency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Balance {
    /// The currency.
    pub currency: Currency,
    /// Everything that the wallet holds or expects: the sum of all amounts below except `pending_outgoing`,
    /// which is spent already. The effects of the history sum to it.
    pub total: Amount,
    /// Sum of the exchanges.
    pub available: Amount,
    /// Sum of the exchanges.
    pub pending_incoming: Amount,
    /// Sum of the exchanges.
    pub pending_outgoing: Amount,
    /// Sum of the exchanges.
    pub dust: Amount,
    /// Sum of the exchanges.
    pub disputed: Amount,
    /// By exchange.
    pub exchanges: Vec<ExchangeBalance>,
}

/// The balances, by currency.
///
/// # Errors
/// If records contradict each other.
pub fn balances(state: &WalletState, now: Timestamp) -> Result<Vec<Balance>, CoreError> {
    let mut by_currency: BTreeMap<String, Balance> = BTreeMap::new();
    for exchange in state.exchanges.values() {
        let part = exchange_balance(state, exchange, now)?;
        let zero = exchange.amount(Money::ZERO);
        let total =
            by_currency.entry(exchange.currency.as_str().to_ascii_uppercase()).or_insert_with(|| Balance {
                currency: exchange.currency,
                total: zero,
                available: zero,
                pending_incoming: zero,
                pending_outgoing: zero,
                dust: zero,
                disputed: zero,
                exchanges: Vec::new(),
            });
        for amount in [&part.available, &part.pending_incoming, &part.dust, &part.disputed] {
            total.total = total.total.checked_add(amount)?;
        }
        total.available = total.available.checked_add(&part.available)?;
        total.pending_incoming = total.pending_incoming.checked_add(&part.pending_incoming)?;
        total.pending_outgoing = total.pending_outgoing.checked_add(&part.pending_outgoing)?;
        total.dust = total.dust.checked_add(&part.dust)?;
        total.disputed = total.disputed.checked_add(&part.disputed)?;
        total.exchanges.push(part);
    }
    Ok(by_currency.into_values().collect())
}

fn exchange_balance(
    state: &WalletState,
    exchange: &Exchange,
    now: Timestamp,
) -> Result<ExchangeBalance, CoreError> {
    let (mut available, mut incoming, mut outgoing, mut dust, mut disputed) =
        (Money::ZERO, Money::ZERO, Money::ZERO, Money::ZERO, Money::ZERO);
    let draft = Draft::new(state);
    for coin in
        state.coins.values().filter(|coin| coin.exchange == exchange.base_url && !coin.remaining.is_zero())
    {
        let denom = exchange.denom(&coin.h_denom_pub)?;
        let sum = match place_of(&draft, coin, denom, now) {
            Place::Available => &mut available,
            Place::Incoming => &mut incoming,
            Place::Dust => &mut dust,
            Place::Lost => continue,
        };
        *sum = sum.checked_add(coin.remaining)?;
    }
    for operation in state.open_operations() {
        let comes =
            !matches!(operation.kind, OpKind::Payment(_) | OpKind::Purchase(_) | OpKind::PursePayment(_));
        let sum = match (operation.dispute, comes) {
            (Some(_), _) => &mut disputed,
            (None, true) => &mut incoming,
            (None, false) => &mut outgoing,
        };
        *sum = sum.checked_add(held(state, exchange, operation)?)?;
    }
    Ok(ExchangeBalance {
        exchange: exchange.base_url.clone(),
        available: exchange.amount(available),
        pending_incoming: exchange.amount(incoming),
        pending_outgoing: exchange.amount(outgoing),
        dust: exchange.amount(dust),
        disputed: exchange.amount(disputed),
    })
}

/// The part of the balance in which a coin counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Available,
    Incoming,
    Dust,
    /// In none: expired, or proven to be spent elsewhere.
    Lost,
}

fn place_of(draft: &Draft<'_>, coin: &Coin, denom: &Denom, now: Timestamp) -> Place {
    match coin.status {
        CoinStatus::Fresh if denom.can_deposit(now) => Place::Available,
        // It is refreshed when the operation that holds it ends, or at its time. If no operation holds it, it was too little
        // for a refresh.
        CoinStatus::Used if is_busy(draft, &coin.coin_pub) || denom.revoked || coin.refresh_at.is_some() => {
            Place::Incoming
        }
        CoinStatus::Used => Place::Dust,
        // To be recouped, or refreshed before it expires.
        CoinStatus::Fresh if denom.revoked => Place::Incoming,
        CoinStatus::Fresh | CoinStatus::Lost => Place::Lost,
    }
}

/// The amount of this exchange that an open operation holds outside the wallet's coins.
fn held(state: &WalletState, exchange: &Exchange, operation: &WalletOperation) -> Result<Money, CoreError> {
    let is_here =
        |coin_pub: &EddsaPublicKey| state.coin(coin_pub).is_ok_and(|coin| coin.exchange == exchange.base_url);
    match &operation.kind {
        // Coins of several exchanges.
        OpKind::Purchase(record) => {
            let parts = record.unsettled().filter(|part| is_here(&part.coin_pub));
            Ok(Money::checked_sum(parts.map(|part| part.amount))?)
        }
        OpKind::Refund(record) => {
            let mut sum = Money::ZERO;
            let is_open = |item: &&RefundItem| item.progress == RefundState::Open && is_here(&item.coin_pub);
            for item in record.items.iter().filter(is_open) {
                sum = sum.checked_add(item.amount.checked_sub(item.fee_refund)?)?;
            }
            Ok(sum)
        }
        _ if operation.exchange != exchange.base_url => Ok(Money::ZERO),
        OpKind::Withdrawal(record) => {
            let (open, _) = record.totals(exchange, &[PlanchetState::Open])?;
            let expected = record.amount.checked_add(record.recouped)?;
            Ok(if record.planchets.is_empty() { expected } else { open.checked_add(record.unplanned)? })
        }
        OpKind::Payment(record) => Ok(record.totals()?.0),
        OpKind::PursePayment(record) => Ok(record.totals()?.0),
        OpKind::PurseIncome(record) => Ok(record.expected()),
        // Nothing of it counts as spent before the exchange has confirmed it.
        OpKind::Refresh(record) if operation.dispute.is_some() => Ok(record.amount),
        OpKind::Refresh(record) => record.value(),
        OpKind::Recoup(record) => Ok(record.amount),
        OpKind::PickUp(_) => Ok(Money::ZERO),
        OpKind::Tip(record) => record.value(),
    }
}

/// State of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Not finished.
    Pending,
    /// Finished successfully.
    Done,
    /// Given up or refused. The money is where it was.
    Failed,
}

/// One row of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transaction {
    /// Number of the operation; `None` for a row that stands for no single operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<OpId>,
    /// `withdrawal`, `payment`, `deposit`, `refresh`, `recoup`, `refund`, `pick-up`, `tip`, `send`, `receive`, `request` or
    /// `pay-request`; without number `refreshes`, `expired` or `spent-elsewhere`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// When it began.
    pub timestamp: Timestamp,
    /// Whether it is finished.
    pub status: Status,
    /// Base URL of the exchange.
    pub exchange: String,
    /// The amount of the operation: the sum that left the bank, that the receiver gets (before the wire fee),
    /// that was melted, or that was paid back.
    pub amount: Amount,
    /// Signed change of [`Balance::total`], fees included: `+CUR:X` or `-CUR:X`. While the operation is
    /// pending, the expected change.
    pub effect: String,
    /// Fees of the exchange.
    pub fees: Amount,
    /// Number of coins.
    pub coins: usize,
    /// Description in plain words.
    pub description: String,
    /// What is wrong, or what the operation waits for, in plain words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Number of the evidence, if the exchange's latest answer was false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<EvidenceId>,
    /// Source or destination of the money.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payto: Option<String>,
    /// Subject for the bank transfer of a manual withdrawal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve_pub: Option<String>,
    /// The shop that a payment is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merchant: Option<String>,
    /// What the shop has refunded of a payment, without the refund fees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refunded: Option<Amount>,
    /// The contract of a payment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub h_contract_terms: Option<String>,
    /// The URI to give to the other person, while money that was sent or requested waits for her.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// The history, newest first. Refreshes are included if requested, disputed, or failed with a loss.
///
/// # Errors
/// If records contradict each other.
pub fn transactions(state: &WalletState, with_refreshes: bool) -> Result<Vec<Transaction>, CoreError> {
    let wanted = |operation: &&WalletOperation| with_refreshes || !is_hidden(operation);
    state.operations.values().rev().filter(wanted).map(|operation| transaction(state, operation)).collect()
}

/// The complete history, whose effects sum to the balance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct History {
    /// The rows, newest first.
    pub transactions: Vec<Transaction>,
    /// The sum of the effects, by currency: [`Balance::total`].
    pub totals: Vec<HistoryTotal>,
}

/// The sum of a history's effects in one currency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryTotal {
    /// The currency.
    pub currency: Currency,
    /// Signed sum of the rows' effects.
    pub total: String,
}

/// The complete history, newest first. Besides the operations it has rows for coins that expired or were
/// spent elsewhere and, unless refreshes are requested, one row for the fees of all refreshes that are left
/// out.
///
/// # Errors
/// If records contradict each other.
pub fn history(state: &WalletState, with_refreshes: bool, now: Timestamp) -> Result<History, CoreError> {
    let mut rows = transactions(state, with_refreshes)?;
    let mut sums: BTreeMap<String, (&Exchange, i128)> = BTreeMap::new();
    for exchange in state.exchanges.values() {
        let mut more = losses(state, exchange, now)?;
        more.extend(hidden_refreshes(state, exchange, with_refreshes)?);
        for row in more {
            let place = rows.iter().position(|other| other.timestamp <= row.timestamp);
            rows.insert(place.unwrap_or(rows.len()), row);
        }
        sums.entry(exchange.currency.as_str().to_ascii_uppercase()).or_insert((exchange, 0));
    }
    for row in &rows {
        let exchange = state.exchange(&row.exchange)?;
        if let Some((_, sum)) = sums.get_mut(&exchange.currency.as_str().to_ascii_uppercase()) {
            *sum += effect_of_row(row)?;
        }
    }
    let totals = sums.into_values().map(|(exchange, sum)| {
        Ok::<_, CoreError>(HistoryTotal { currency: exchange.currency, total: signed(exchange, sum)? })
    });
    let totals = totals.collect::<Result<_, CoreError>>()?;
    Ok(History { transactions: rows, totals })
}

/// The effect that a row shows, in signed units.
fn effect_of_row(row: &Transaction) -> Result<i128, CoreError> {
    let amount = Amount::parse(row.effect.trim_start_matches(['+', '-']))?;
    let units = effect::units(amount.money);
    Ok(if row.effect.starts_with('-') { -units } else { units })
}

fn is_hidden(operation: &WalletOperation) -> bool {
    match &operation.kind {
        OpKind::Refresh(record) => operation.dispute.is_none() && record.stage != RefreshStage::Lost,
        // The refunds that it found have rows of their own.
        OpKind::PickUp(_) => operation.dispute.is_none(),
        _ => false,
    }
}

/// One row for the fees of the refreshes that have no rows of their own.
fn hidden_refreshes(
    state: &WalletState,
    exchange: &Exchange,
    with_refreshes: bool,
) -> Result<Option<Transaction>, CoreError> {
    let (mut sum, mut latest) = (0, Timestamp::ZERO);
    for operation in state.operations.values() {
        if !with_refreshes && is_hidden(operation) && operation.exchange == exchange.base_url {
            sum += effect(state, exchange, operation)?;
            latest = latest.max(operation.created);
        }
    }
    if sum == 0 {
        return Ok(None);
    }
    let fees = exchange.amount(Money::from_units(sum.unsigned_abs())?);
    let mut row = summary_row(exchange, "refreshes", latest, sum, fees)?;
    row.fees = fees;
    row.description = "Fees for making change".to_owned();
    Ok(Some(row))
}

/// One row of the history.
///
/// # Errors
/// If records contradict each other.
pub fn transaction(state: &WalletState, operation: &WalletOperation) -> Result<Transaction, CoreError> {
    let exchange = state.exchange(&operation.exchange)?;
    let zero = exchange.amount(Money::ZERO);
    let running = if operation.finished.is_some() { Status::Done } else { Status::Pending };
    let mut line = Transaction {
        id: Some(operation.id),
        kind: operation.kind.name(),
        timestamp: operation.created,
        status: running,
        exchange: operation.exchange.clone(),
        amount: zero,
        effect: signed(exchange, effect(state, exchange, operation)?)?,
        fees: zero,
        coins: 0,
        description: String::new(),
        message: operation.last_error.clone(),
        evidence: operation.dispute.map(|dispute| dispute.evidence),
        payto: None,
        reserve_pub: None,
        merchant: None,
        refunded: None,
        h_contract_terms: None,
        uri: None,
    };
    match &operation.kind {
        OpKind::Withdrawal(record) => {
            let (value, fees) = record.totals(exchange, &[PlanchetState::Open, PlanchetState::Done])?;
            line.amount = exchange.amount(record.amount);
            line.fees = exchange.amount(fees);
            line.coins =
                record.planchets.iter().filter(|planchet| planchet.state == PlanchetState::Done).count();
            line.reserve_pub = Some(record.reserve_pub.to_string());
            let from = match &record.origin {
                Origin::Bank(_) => "from your bank account",
                Origin::Manual { payto } => {
                    line.payto = Some(payto.clone());
                    "by bank transfer"
                }
                Origin::Recoup => "of money paid back for revoked coins",
                Origin::Purse => "of received money",
            };
            line.description = format!("Withdrawal {from}");
            if line.coins > 0 || !record.planchets.is_empty() {
                line.description.push_str(&format!(
                    ": {} into coins, {}",
                    exchange.amount(value),
                    describe_fees(&[("withdrawal", exchange.amount(fees))])
                ));
            }
            if !record.leftover.is_zero() {
                let then = match record.origin {
                    Origin::Purse => "stay in the reserve until more money comes",
                    _ => "return to the sender when the reserve closes",
                };
                let leftover = exchange.amount(record.leftover);
                line.description.push_str(&format!("; {leftover} fit into no coin and {then}"));
            }
            if record.stage == WithdrawStage::Aborted || (running == Status::Done && line.coins == 0) {
                line.status = Status::Failed;
            }
            if !record.unproved.is_zero() {
                line.message = Some(format!(
                    "the exchange confirmed that revoked coins were paid back, but {} of it are not in the reserve; it gives no proof",
                    exchange.amount(record.unproved)
                ));
            }
            line.message = line.message.or_else(|| record.reason.clone());
        }
        OpKind::Payment(record) => {
            let (total, fees) = record.totals()?;
            if record.is_own_account() {
                line.kind = "deposit";
            }
            line.amount = exchange.amount(record.amount);
            line.fees = exchange.amount(fees);
            line.coins = record.coins.len();
            line.payto = Some(record.payto.clone());
            line.h_contract_terms = Some(record.h_contract_terms.to_string());
            line.description = format!(
                "{}: {} plus {}",
                record.summary,
                exchange.amount(total.checked_sub(fees)?),
                describe_fees(&[("deposit", exchange.amount(fees))])
            );
            if let Some(fee) =
                exchange.wire_fee(&record.payto, record.wire_deadline).filter(|fee| !fee.is_zero())
            {
                line.description
                    .push_str(&format!("; the exchange keeps a wire fee of {fee} from the transfer"));
            }
            if record.stage == PaymentStage::Failed {
                line.status = Status::Failed;
            }
            line.message = line.message.or_else(|| record.reason.clone());
        }
        OpKind::Purchase(record) => {
            let terms = record.terms();
            let fees = exchange.amount(purchase::fees_of(record)?);
            line.amount = terms.amount;
            line.fees = fees;
            line.coins = record.spent().count();
            line.merchant = Some(terms.merchant_name.clone());
            line.h_contract_terms = Some(terms.h_contract_terms.to_string());
            line.description = format!("{}{}: {}", terms.merchant_name, about(&terms.summary), terms.amount);
            if !fees.is_zero() {
                line.description.push_str(&format!(" plus {fees} of fees"));
            }
            let refunded =
                refunds::of_purchase(state, operation.id).map(|(_, refund)| Ok(refund.totals()?.0));
            let refunded = Money::checked_sum(refunded.collect::<Result<Vec<_>, CoreError>>()?)?;
            if !refunded.is_zero() {
                let refunded = exchange.amount(refunded);
                line.refunded = Some(refunded);
                line.description.push_str(&format!("; {refunded} refunded"));
            }
            if record.stage == PurchaseStage::Failed {
                line.status = Status::Failed;
            }
            line.message = line.message.or_else(|| record.reason.clone());
        }
        OpKind::Refresh(record) => {
            line.amount = exchange.amount(record.amount);
            let fees = record.fee_melt.checked_add(record.fees_withdraw)?;
            line.fees = exchange.amount(fees);
            line.coins = record.fresh.len();
            let why = match record.reason {
                RefreshReason::Change => "Change into fresh coins",
                RefreshReason::Expiry => "Coins that expire into fresh ones",
            };
            line.description = format!(
                "{why}: {}",
                describe_fees(&[
                    ("refresh", exchange.amount(record.fee_melt)),
                    ("withdrawal", exchange.amount(record.fees_withdraw))
                ])
            );
            match record.stage {
                RefreshStage::Failed => {
                    line.status = Status::Failed;
                    line.fees = zero;
                }
                RefreshStage::Lost => line.status = Status::Failed,
                _ => {}
            }
            line.message = line.message.or_else(|| record.failure.clone());
        }
        OpKind::Recoup(record) => {
            line.amount = exchange.amount(record.amount);
            line.coins = 1;
            line.description = format!(
                "The exchange revoked a coin's denomination and pays {} back, free of charge",
                line.amount
            );
            if record.reason.is_some() {
                line.status = Status::Failed;
            }
            if !record.missing.is_zero() {
                line.message = Some(format!(
                    "{} of the coin had been spent before, perhaps by a copy of this wallet: the exchange has signed what it paid back",
                    exchange.amount(record.missing)
                ));
            }
            line.message = line.message.or_else(|| record.reason.clone());
        }
        OpKind::Refund(record) => {
            let (_, fees) = record.totals()?;
            line.amount = exchange.amount(Money::checked_sum(record.items.iter().map(|item| item.amount))?);
            line.fees = exchange.amount(fees);
            line.coins = record.items.len();
            line.h_contract_terms = Some(record.h_contract_terms.to_string());
            let fees = describe_fees(&[("refund", exchange.amount(fees))]);
            line.description = match &state.operation(record.payment)?.kind {
                OpKind::Purchase(purchase) => {
                    let terms = purchase.terms();
                    line.merchant = Some(terms.merchant_name.clone());
                    let about = about(&terms.summary);
                    format!("Refund of {}{about}: {}, {fees}", terms.merchant_name, line.amount)
                }
                _ => format!("Refund: {fees}"),
            };
            let failures: Vec<&str> = record
                .items
                .iter()
                .filter_map(|item| match &item.progress {
                    RefundState::Failed(reason) => Some(reason.as_str()),
                    _ => None,
                })
                .collect();
            if !failures.is_empty() {
                if failures.len() == record.items.len() {
                    line.status = Status::Failed;
                }
                line.message = Some(failures.join("; "));
            }
        }
        OpKind::Tip(record) => {
            line.amount = exchange.amount(record.amount);
            line.fees = exchange.amount(record.fees);
            line.coins = record.denoms.len();
            line.merchant = Some(record.merchant_base_url.clone());
            let fees = describe_fees(&[("withdrawal", line.fees)]);
            line.description = format!("Tip of {}: {}, {fees}", record.merchant_base_url, line.amount);
            if record.stage == TipStage::Failed {
                line.status = Status::Failed;
            }
            line.message = line.message.or_else(|| record.reason.clone());
        }
        OpKind::PickUp(record) => {
            line.description = match &state.operation(record.purchase)?.kind {
                OpKind::Purchase(purchase) => {
                    let terms = purchase.terms();
                    line.merchant = Some(terms.merchant_name.clone());
                    line.h_contract_terms = Some(terms.h_contract_terms.to_string());
                    format!("Refunds of {}{}", terms.merchant_name, about(&terms.summary))
                }
                _ => String::new(),
            };
            if record.stage == PickUpStage::Failed {
                line.status = Status::Failed;
            }
            line.message = line.message.or_else(|| record.reason.clone());
        }
        OpKind::PursePayment(record) => {
            let (_, fees) = record.totals()?;
            line.amount = exchange.amount(record.terms.amount);
            line.fees = exchange.amount(fees);
            line.coins = record.coins.len();
            line.h_contract_terms = Some(record.terms.h_contract_terms.to_string());
            let what = match record.direction {
                Direction::Push => "Sent",
                Direction::Pull => "Request paid",
            };
            line.description = format!("{what}{}: {}", about(&record.terms.summary), line.amount);
            if !fees.is_zero() {
                line.description.push_str(&format!(" plus {} deposit fee", line.fees));
            }
            if record.stage == PayStage::Open {
                line.uri = Some(purse::uri(record.direction, &operation.exchange, &record.contract_priv));
            }
            if matches!(record.stage, PayStage::Failed | PayStage::Returned) {
                line.status = Status::Failed;
            }
            line.message = line.message.or_else(|| record.reason.clone());
        }
        OpKind::PurseIncome(record) => {
            line.amount = exchange.amount(record.terms.amount);
            line.h_contract_terms = Some(record.terms.h_contract_terms.to_string());
            line.reserve_pub = Some(record.reserve_priv.public_key().to_string());
            let what = match (record.direction, record.stage) {
                (Direction::Push, _) => "Received",
                (Direction::Pull, IncomeStage::Done) => "Request paid to you",
                (Direction::Pull, _) => "Requested",
            };
            line.description = format!("{what}{}: {}", about(&record.terms.summary), line.amount);
            if record.stage == IncomeStage::Await {
                line.uri = Some(purse::uri(record.direction, &operation.exchange, &record.contract_priv));
            }
            if record.stage == IncomeStage::Failed {
                line.status = Status::Failed;
            }
            line.message = line.message.or_else(|| record.reason.clone());
        }
    }
    Ok(line)
}

/// The summary of a payment in a description.
fn about(summary: &str) -> String {
    if summary.is_empty() { String::new() } else { format!(" for {summary:?}") }
}

/// `no fee`, or the fees that are not zero: `EUR:0.02 withdrawal fee`.
#[must_use]
pub fn describe_fees(fees: &[(&str, Amount)]) -> String {
    let parts: Vec<String> = fees
        .iter()
        .filter(|(_, fee)| !fee.is_zero())
        .map(|(name, fee)| format!("{fee} {name} fee"))
        .collect();
    if parts.is_empty() { "no fee".to_owned() } else { parts.join(" and ") }
}
