//! Proofs that a coin holds less than the wallet expects: the coin's history.

use std::collections::{BTreeMap, BTreeSet};

use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash};
use batzen_protocol::api::errors::CoinConflict;
use batzen_protocol::api::exchange::{
    CoinDeposit, CoinHistoryItem, CoinMelt, CoinPurseDeposit, CoinPurseRefund, CoinRecoup, CoinRecoupRefresh,
    CoinRefund, OldCoinRecoup,
};
use batzen_protocol::signatures::{
    ExchangeConfirmPurseRefund, ExchangeConfirmRecoup, ExchangeConfirmRecoupRefresh, MerchantRefund,
    SignedMessage, WalletCoinDeposit, WalletCoinMelt, WalletCoinRecoup, WalletCoinRecoupRefresh,
    WalletPurseDeposit,
};
use batzen_protocol::{Amount, ErrorCode, Money, Timestamp, hash_text};
use serde::Deserialize;

use super::super::coin::{Coin, CoinSource, CoinStatus};
use super::super::exchange::{Denom, Exchange};
use super::super::http::HttpResponse;
use super::super::operation::Step;
use super::super::purse::{PartState, PayStage};
use super::super::state::{Draft, OpId, OpKind};
use super::super::{CoreError, withdraw};
use super::ProofCheck;
use super::known::{Answer, Contract, Known};
use crate::core::error::Result;

const PROOF: ProofCheck = ProofCheck { what: "the exchange's proof about a coin" };

/// The request that the exchange refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    Deposit {
        contract: Contract,
        /// Contribution of the coin.
        amount: Money,
    },
    Melt {
        /// Its commitment, which identifies it.
        rc: HashCode,
        /// Amount with fee.
        amount: Money,
    },
    /// A deposit into a purse.
    Purse {
        purse_pub: EddsaPublicKey,
        /// Contribution of the coin.
        amount: Money,
    },
    /// A recoup, or a recoup of a refreshed coin.
    Recoup,
}

/// Content of a valid proof.
#[derive(Clone, Debug)]
pub(crate) struct CoinProof {
    /// The coin's remaining value.
    pub(crate) left: Money,
    /// The amount that recoups unknown to this wallet paid back to the coin's origin.
    recouped: Vec<Money>,
    /// Operations that the exchange had refused, and that the user accepts as done.
    conceded: BTreeSet<OpId>,
    /// This wallet's payments into purses that the history lists, and whether they were given back.
    purses: Vec<(OpId, bool)>,
    /// This wallet's failed purchases whose merchants had deposited the coin.
    purchases: BTreeSet<OpId>,
}

/// Returns whether an answer says that a coin was spent elsewhere, or under other terms.
pub(crate) fn is_conflict(response: &HttpResponse) -> bool {
    let code = response.code();
    response.status == 409
        && (code == ErrorCode::EXCHANGE_GENERIC_COIN_CONFLICTING_DENOMINATION_KEY
            || code == ErrorCode::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS
            || code == ErrorCode::EXCHANGE_GENERIC_COIN_CONFLICTING_AGE_HASH)
}

/// Verifies the proof that one of the coins of a request was spent elsewhere. `parts` has the coins with their
/// contributions; `about` says what the request asked of one with this contribution.
pub(crate) fn verify_one_of(
    step: &Step<'_, '_>,
    mut parts: impl Iterator<Item = (EddsaPublicKey, Money)>,
    about: impl FnOnce(Money) -> Asked,
    response: &HttpResponse,
) -> Result<(EddsaPublicKey, CoinProof)> {
    let coin_pub =
        named(response).ok_or_else(|| PROOF.false_proof("it does not say which coin it is about"))?;
    let part = parts.find(|(other, _)| *other == coin_pub);
    let (_, amount) =
        part.ok_or_else(|| PROOF.false_proof("it is about a coin that is not in the request"))?;
    let proof = verify(&step.draft, &coin_pub, about(amount), step.accept_refused, response, step.now)?;
    Ok((coin_pub, proof))
}

/// The coin that a conflict answer is about.
pub(crate) fn named(response: &HttpResponse) -> Option<EddsaPublicKey> {
    #[derive(Deserialize)]
    struct Named {
        coin_pub: EddsaPublicKey,
    }
    serde_json::from_slice::<Named>(&response.body).ok().map(|named| named.coin_pub)
}

/// Verifies a conflict answer about one of the wallet's coins. `accept_refused`: the user accepts that
/// operations took place which the exchange had refused.
///
/// # Errors
/// [`CoreError::FalseProof`] if the proof is invalid; [`CoreError::UnknownSigningKey`] if it is signed by an
/// unknown key.
pub(crate) fn verify(
    draft: &Draft<'_>,
    coin_pub: &EddsaPublicKey,
    asked: Asked,
    accept_refused: bool,
    response: &HttpResponse,
    now: Timestamp,
) -> Result<CoinProof> {
    let coin = draft.coin(coin_pub)?;
    let exchange = draft.exchange(&coin.exchange)?;
    let denom = exchange.denom(&coin.h_denom_pub)?;
    let conflict: CoinConflict = PROOF.parse(response)?;
    PROOF.check(conflict.coin_pub == *coin_pub, "it is about another coin")?;
    // This wallet uses each coin key with one denomination and one age commitment, or none.
    PROOF.check(
        response.code() == ErrorCode::EXCHANGE_GENERIC_INSUFFICIENT_FUNDS
            && conflict.h_denom_pub == coin.h_denom_pub,
        "it says that the coin was used under other terms than those it was issued with",
    )?;
    PROOF.check_count(conflict.history.len())?;
    let mut known = Known::default();
    for operation in draft.operations() {
        operation.kind.operation().add_known(draft, operation.id, coin_pub, &mut known)?;
    }
    let mut ledger = Ledger::new(exchange, denom, coin, asked, known, now);
    for item in &conflict.history {
        ledger.enter(item)?;
    }
    ledger.close(accept_refused)
}

/// Verifies a history, item by item.
struct Ledger<'a> {
    exchange: &'a Exchange,
    denom: &'a Denom,
    coin: &'a Coin,
    asked: Asked,
    known: Known,
    now: Timestamp,
    debits: Money,
    credits: Money,
    deposits: BTreeMap<Contract, Money>,
    melts: BTreeSet<HashCode>,
    refunds: BTreeMap<(Contract, u64), Money>,
    /// Payments into purses: amount, and whether the purse gave it back.
    purses: BTreeMap<EddsaPublicKey, (Money, bool)>,
    /// Purses that gave the coin's contribution back: the signed amount and refund fee.
    purse_refunds: BTreeMap<EddsaPublicKey, (Money, Money)>,
    /// Recoups of the coin: time and amount.
    recoups: BTreeSet<(Timestamp, Money)>,
    /// Recoups into the coin: the other coin, time and amount.
    returned: BTreeSet<(EddsaPublicKey, Timestamp, Money)>,
    /// Operations that the exchange had refused.
    refused: BTreeSet<OpId>,
    /// Failed purchases whose merchants had deposited the coin.
    purchases: BTreeSet<OpId>,
}

impl<'a> Ledger<'a> {
    fn new(
        exchange: &'a Exchange,
        denom: &'a Denom,
        coin: &'a Coin,
        asked: Asked,
        known: Known,
        now: Timestamp,
    ) -> Self {
        Self {
            exchange,
            denom,
            coin,
            asked,
            known,
            now,
            debits: Money::ZERO,
            credits: Money::ZERO,
            deposits: BTreeMap::new(),
            melts: BTreeSet::new(),
            refunds: BTreeMap::new(),
            purses: BTreeMap::new(),
            purse_refunds: BTreeMap::new(),
            recoups: BTreeSet::new(),
            returned: BTreeSet::new(),
            refused: BTreeSet::new(),
            purchases: BTreeSet::new(),
        }
    }

    fn enter(&mut self, item: &CoinHistoryItem) -> Result<()> {
        match item {
            CoinHistoryItem::Deposit(item) => self.deposit(item),
            CoinHistoryItem::Melt(item) => self.melt(item),
            CoinHistoryItem::Refund(item) => self.refund(item),
            CoinHistoryItem::Recoup(item) => self.recoup(item),
            CoinHistoryItem::RecoupRefresh(item) => self.recoup_refresh(item),
            CoinHistoryItem::OldCoinRecoup(item) => self.old_coin_recoup(item),
            CoinHistoryItem::PurseDeposit(item) => self.purse_deposit(item),
            CoinHistoryItem::PurseRefund(item) => self.purse_refund(item),
            CoinHistoryItem::ReserveOpenDeposit(_) => {
                Err(PROOF.false_proof("it lists a kind of payment that this wallet never makes"))
            }
        }
    }

    /// Checks the amount of one item: it never exceeds the coin's value.
    fn money(&self, amount: &Amount) -> Result<Money> {
        let money = PROOF.amount(self.exchange, amount)?;
        PROOF.check(money <= self.denom.value, "an amount in it is larger than the coin's value")?;
        Ok(money)
    }

    fn check_fee(&self, fee: &Amount, right: Money) -> Result<()> {
        PROOF.check(*fee == self.exchange.amount(right), "a fee in it is not that of the coin's denomination")
    }

    fn check_own(holds: bool) -> Result<()> {
        PROOF.check(holds, "it lists an operation that the coin did not sign")
    }

    fn debit(&mut self, money: Money) -> Result<()> {
        self.debits = self.debits.checked_add(money)?;
        Ok(())
    }

    fn credit(&mut self, money: Money) -> Result<()> {
        self.credits = self.credits.checked_add(money)?;
        Ok(())
    }

    fn deposit(&mut self, item: &CoinDeposit) -> Result<()> {
        let money = self.money(&item.amount)?;
        self.check_fee(&item.deposit_fee, self.denom.fee_deposit)?;
        let message = WalletCoinDeposit {
            h_contract_terms: item.h_contract_terms,
            h_age_commitment: item.h_age_commitment.unwrap_or(ShortHash::ZERO),
            h_policy: item.h_policy.unwrap_or(HashCode::ZERO),
            h_wire: item.h_wire,
            h_denom_pub: self.coin.h_denom_pub,
            wallet_timestamp: item.timestamp,
            refund_deadline: item.refund_deadline.unwrap_or(Timestamp::ZERO),
            amount_with_fee: item.amount,
            deposit_fee: item.deposit_fee,
            merchant_pub: item.merchant_pub,
        };
        Self::check_own(message.verify(&self.coin.coin_pub, &item.coin_sig))?;
        let contract = (item.merchant_pub, item.h_contract_terms);
        if let Asked::Deposit { contract: own, .. } = self.asked {
            PROOF.check(contract != own, "it counts the very deposit that it refuses")?;
        }
        PROOF.check(self.deposits.insert(contract, money).is_none(), "it lists a deposit twice")?;
        let mut refused = None;
        for (_, amount, state) in self.known.deposits.iter().filter(|(known, ..)| *known == contract) {
            match state {
                _ if *amount == money && !matches!(state, Answer::Refused(_)) => {
                    refused = None;
                    break;
                }
                Answer::Confirmed => {
                    return Err(PROOF
                        .false_proof("it lists another amount for a deposit than the exchange confirmed"));
                }
                Answer::Refused(id) if *amount == money => refused = Some(*id),
                Answer::None | Answer::Refused(_) => {}
            }
        }
        self.refused.extend(refused);
        let failed =
            self.known.purchases.iter().filter(|(known, amount, _)| *known == contract && *amount == money);
        self.purchases.extend(failed.map(|(.., id)| *id));
        self.debit(money)
    }

    fn melt(&mut self, item: &CoinMelt) -> Result<()> {
        let money = self.money(&item.amount)?;
        self.check_fee(&item.melt_fee, self.denom.fee_refresh)?;
        let message = WalletCoinMelt {
            refresh_commitment: item.rc,
            h_denom_pub: self.coin.h_denom_pub,
            h_age_commitment: item.h_age_commitment.unwrap_or(ShortHash::ZERO),
            amount_with_fee: item.amount,
            melt_fee: item.melt_fee,
        };
        Self::check_own(message.verify(&self.coin.coin_pub, &item.coin_sig))?;
        if let Asked::Melt { rc, .. } = self.asked {
            PROOF.check(item.rc != rc, "it counts the very melt that it refuses")?;
        }
        PROOF.check(self.melts.insert(item.rc), "it lists a melt twice")?;
        if let Some(Answer::Refused(id)) = self.known.melts.get(&item.rc) {
            self.refused.insert(*id);
        }
        self.debit(money)
    }

    fn refund(&mut self, item: &CoinRefund) -> Result<()> {
        let money = self.money(&item.amount)?;
        self.check_fee(&item.refund_fee, self.denom.fee_refund)?;
        let refund_amount = item
            .amount
            .checked_add(&item.refund_fee)
            .map_err(|error| PROOF.false_proof(error.to_string()))?;
        let message = MerchantRefund {
            h_contract_terms: item.h_contract_terms,
            coin_pub: self.coin.coin_pub,
            rtransaction_id: item.rtransaction_id,
            refund_amount,
        };
        PROOF.check(
            message.verify(&item.merchant_pub, &item.merchant_sig),
            "it lists a refund that the merchant did not sign",
        )?;
        let key = ((item.merchant_pub, item.h_contract_terms), item.rtransaction_id);
        let is_new = self.refunds.insert(key, refund_amount.money).is_none();
        PROOF.check(is_new, "it lists a refund twice")?;
        self.credit(money)
    }

    fn purse_deposit(&mut self, item: &CoinPurseDeposit) -> Result<()> {
        let money = self.money(&item.amount)?;
        let message = WalletPurseDeposit {
            coin_amount: item.amount,
            h_denom_pub: self.coin.h_denom_pub,
            h_age_commitment: item.h_age_commitment.unwrap_or(ShortHash::ZERO),
            purse_pub: item.purse_pub,
            h_exchange_base_url: hash_text(&item.exchange_base_url),
        };
        Self::check_own(message.verify(&self.coin.coin_pub, &item.coin_sig))?;
        if let Asked::Purse { purse_pub, .. } = self.asked {
            PROOF.check(item.purse_pub != purse_pub, "it counts the very payment that it refuses")?;
        }
        let is_new = self.purses.insert(item.purse_pub, (money, item.refunded)).is_none();
        PROOF.check(is_new, "it lists a payment into a purse twice")?;
        self.debit(money)
    }

    fn purse_refund(&mut self, item: &CoinPurseRefund) -> Result<()> {
        let money = self.money(&item.amount)?;
        self.check_fee(&item.refund_fee, self.denom.fee_refund)?;
        let statement = ExchangeConfirmPurseRefund {
            purse_pub: item.purse_pub,
            coin_pub: self.coin.coin_pub,
            refunded_amount: item.amount,
            refund_fee: item.refund_fee,
        };
        let signature = (&item.exchange_pub, &item.exchange_sig);
        PROOF.check_exchange(self.exchange, &statement, signature, (Timestamp::ZERO, self.now))?;
        let is_new = self.purse_refunds.insert(item.purse_pub, (money, item.refund_fee.money)).is_none();
        PROOF.check(is_new, "it lists what a purse gave back twice")
    }

    /// Checks payments into purses against what was given back, and against this wallet's records.
    fn close_purses(&mut self) -> Result<Vec<(OpId, bool)>> {
        for (purse_pub, (refunded, fee)) in std::mem::take(&mut self.purse_refunds) {
            let paid = self.purses.get(&purse_pub).filter(|(_, is_refunded)| *is_refunded);
            let (paid, _) = *paid.ok_or_else(|| {
                PROOF.false_proof("it lists what a purse gave back without the payment into it")
            })?;
            // The exchange gives back everything. The fee in its statement is not charged.
            let is_right = refunded == paid.checked_sub(fee).unwrap_or(Money::ZERO);
            PROOF.check(is_right, "a purse gave back another amount than was paid into it")?;
            self.credit(paid)?;
        }
        let mut own = Vec::new();
        for (purse_pub, (money, is_refunded)) in &self.purses {
            for (id, amount, state) in self.known.purses.get(purse_pub).into_iter().flatten() {
                PROOF.check(
                    amount == money || *state != Answer::Confirmed,
                    "it lists another amount for a payment into a purse than the exchange confirmed",
                )?;
                if amount != money {
                    continue;
                }
                match state {
                    Answer::Refused(id) if !is_refunded => {
                        self.refused.insert(*id);
                    }
                    Answer::Refused(_) => {}
                    Answer::Confirmed | Answer::None => own.push((*id, *is_refunded)),
                }
            }
        }
        Ok(own)
    }

    fn check_exchange(
        &self,
        message: &impl SignedMessage,
        signature: (&EddsaPublicKey, &batzen_crypto::EddsaSignature),
        timestamp: Timestamp,
    ) -> Result<()> {
        PROOF.check_exchange(self.exchange, message, signature, (timestamp, self.now))?;
        let earliest = self.coin.created.saturating_sub(super::CLOCK_TOLERANCE);
        PROOF.check(timestamp >= earliest, "it dates something before the coin existed")
    }

    fn recoup(&mut self, item: &CoinRecoup) -> Result<()> {
        let money = self.money(&item.amount)?;
        let CoinSource::Withdrawal { reserve_pub, .. } = self.coin.source else {
            return Err(PROOF.false_proof("it lists a recoup into a reserve for a coin that is change"));
        };
        PROOF.check(item.reserve_pub == reserve_pub, "it lists a recoup into another reserve")?;
        let message =
            WalletCoinRecoup { h_denom_pub: self.coin.h_denom_pub, coin_blind: item.coin_blind.clone() };
        Self::check_own(message.verify(&self.coin.coin_pub, &item.coin_sig))?;
        let statement = ExchangeConfirmRecoup {
            timestamp: item.timestamp,
            recoup_amount: item.amount,
            coin_pub: self.coin.coin_pub,
            reserve_pub,
        };
        self.check_exchange(&statement, (&item.exchange_pub, &item.exchange_sig), item.timestamp)?;
        self.recouped(item.timestamp, money)
    }

    fn recoup_refresh(&mut self, item: &CoinRecoupRefresh) -> Result<()> {
        let money = self.money(&item.amount)?;
        let CoinSource::Refresh { old_coin_pub, .. } = self.coin.source else {
            return Err(PROOF.false_proof("it lists a recoup into a coin for a coin that was withdrawn"));
        };
        PROOF.check(item.old_coin_pub == old_coin_pub, "it lists a recoup into another coin")?;
        let message = WalletCoinRecoupRefresh {
            h_denom_pub: self.coin.h_denom_pub,
            coin_blind: item.coin_blind.clone(),
        };
        Self::check_own(message.verify(&self.coin.coin_pub, &item.coin_sig))?;
        let statement = ExchangeConfirmRecoupRefresh {
            timestamp: item.timestamp,
            recoup_amount: item.amount,
            coin_pub: self.coin.coin_pub,
            old_coin_pub,
        };
        self.check_exchange(&statement, (&item.exchange_pub, &item.exchange_sig), item.timestamp)?;
        self.recouped(item.timestamp, money)
    }

    fn recouped(&mut self, timestamp: Timestamp, money: Money) -> Result<()> {
        // A repeated recoup succeeds, so an earlier recoup cannot be the reason for a refusal.
        PROOF.check(!matches!(self.asked, Asked::Recoup), "it counts the very recoup that it refuses")?;
        PROOF.check(self.recoups.insert((timestamp, money)), "it lists a recoup twice")?;
        self.debit(money)
    }

    fn old_coin_recoup(&mut self, item: &OldCoinRecoup) -> Result<()> {
        let money = self.money(&item.amount)?;
        let statement = ExchangeConfirmRecoupRefresh {
            timestamp: item.timestamp,
            recoup_amount: item.amount,
            coin_pub: item.coin_pub,
            old_coin_pub: self.coin.coin_pub,
        };
        self.check_exchange(&statement, (&item.exchange_pub, &item.exchange_sig), item.timestamp)?;
        let is_new = self.returned.insert((item.coin_pub, item.timestamp, money));
        PROOF.check(is_new, "it lists a recoup twice")?;
        self.credit(money)
    }

    /// Adds up the items, and checks that no confirmed refund or recoup is missing.
    fn close(mut self, accept_refused: bool) -> Result<CoinProof> {
        let purses = self.close_purses()?;
        let mut refunded: BTreeMap<Contract, Money> = BTreeMap::new();
        for ((contract, _), money) in &self.refunds {
            let sum = refunded.entry(*contract).or_default();
            *sum = sum.checked_add(*money)?;
        }
        for (contract, sum) in refunded {
            let paid = self.deposits.get(&contract).copied().unwrap_or_default();
            PROOF.check(sum <= paid, "it lists refunds of more than was deposited")?;
        }
        PROOF.check(
            self.known.refunds.iter().all(|key| self.refunds.contains_key(key)),
            "it leaves out a refund that the exchange confirmed",
        )?;
        for (coin_pub, confirmed) in &self.known.returned {
            let listed = self.returned.iter().filter(|(other, ..)| other == coin_pub);
            let listed = Money::checked_sum(listed.map(|(.., money)| *money))?;
            PROOF.check(listed >= *confirmed, "it leaves out a recoup that the exchange confirmed")?;
        }
        let value = self.denom.value;
        let left = value.checked_add(self.credits)?.checked_sub(self.debits);
        let left =
            left.map_err(|_| PROOF.false_proof("it takes more from the coin than the coin was worth"))?;
        PROOF.check(left <= value, "it leaves more on the coin than the coin is worth")?;
        let suffices = match self.asked {
            Asked::Deposit { amount, .. } | Asked::Melt { amount, .. } | Asked::Purse { amount, .. } => {
                left >= amount
            }
            Asked::Recoup => !left.is_zero(),
        };
        PROOF.check(!suffices, "by its own figures the coin's balance suffices")?;
        if !accept_refused && let Some(id) = self.refused.first() {
            return Err(PROOF.false_proof(format!("it lists operation {id}, which the exchange had refused")));
        }
        // Operations in excess of the wallet's own were made by a copy of this wallet, or refused earlier.
        let recouped = self.recoups.into_iter().skip(self.known.recoups).map(|(_, money)| money).collect();
        Ok(CoinProof { left, recouped, conceded: self.refused, purses, purchases: self.purchases })
    }
}

/// Applies a valid proof, after the refused operation's debit was reversed.
pub(crate) fn accept(step: &mut Step<'_, '_>, coin_pub: &EddsaPublicKey, proof: &CoinProof) -> Result<()> {
    let coin = step.draft.coin_mut(coin_pub)?;
    coin.remaining = proof.left;
    coin.status = if proof.left.is_zero() { CoinStatus::Lost } else { CoinStatus::Used };
    let source = coin.source;
    for id in &proof.conceded {
        let mut operation = step.draft.operation(*id)?.clone();
        let note = "; the exchange listed it as done later, which you accepted";
        match &mut operation.kind {
            OpKind::Payment(payment) => {
                payment.refused.retain(|part| part.coin_pub != *coin_pub);
                payment.reason.get_or_insert_default().push_str(note);
            }
            OpKind::Refresh(refresh) => {
                refresh.rc = None;
                refresh.failure.get_or_insert_default().push_str(note);
            }
            OpKind::PursePayment(payment) => {
                payment.refused.retain(|part| part.coin_pub != *coin_pub);
                for part in payment.coins.iter_mut().filter(|part| part.coin_pub == *coin_pub) {
                    part.state = PartState::Spent;
                }
                payment.reason.get_or_insert_default().push_str(note);
            }
            _ => {}
        }
        step.draft.put_operation(operation);
    }
    // The payment that is being processed has taken the coin back already.
    for (id, is_refunded) in proof.purses.iter().filter(|(id, _)| *id != step.operation.id) {
        let mut operation = step.draft.operation(*id)?.clone();
        let OpKind::PursePayment(payment) = &mut operation.kind else { continue };
        for part in payment.coins.iter_mut().filter(|part| part.coin_pub == *coin_pub) {
            part.state = if *is_refunded { PartState::Returned } else { PartState::Spent };
        }
        if !is_refunded && matches!(payment.stage, PayStage::Returned | PayStage::Failed) {
            payment.stage = PayStage::Done;
            payment.reason =
                Some("the receiver got it before it expired, as the exchange has proven".to_owned());
        }
        step.draft.put_operation(operation);
    }
    for id in proof.purchases.iter().filter(|id| **id != step.operation.id) {
        let mut operation = step.draft.operation(*id)?.clone();
        if let OpKind::Purchase(purchase) = &mut operation.kind {
            purchase.deposited_after_all(coin_pub);
        }
        step.draft.put_operation(operation);
    }
    for amount in &proof.recouped {
        match source {
            CoinSource::Withdrawal { operation, .. } => {
                let OpKind::Withdrawal(withdrawal) = &step.draft.operation(operation)?.kind else {
                    return Err(CoreError::Inconsistent(format!("coin {coin_pub} has no withdrawal")));
                };
                let reserve_priv = withdrawal.reserve_priv.clone();
                withdraw::start_from_recoup(step, &reserve_priv, *amount)?;
            }
            // The recoup paid into the merchant's reserve.
            CoinSource::Tip { .. } => {}
            CoinSource::Refresh { old_coin_pub, .. } => {
                // If a copy of this wallet has it already, the exchange proves that when it is melted.
                if step.draft.credit_coin(&old_coin_pub, *amount).is_ok() {
                    step.draft.coin_mut(&old_coin_pub)?.status = CoinStatus::Used;
                }
            }
        }
    }
    Ok(())
}
