//! Proofs that a reserve holds less than a withdrawal needs: the reserve's history.

use std::collections::{BTreeMap, BTreeSet};

use batzen_crypto::{EddsaPublicKey, HashCode};
use batzen_protocol::api::errors::InsufficientReserve;
use batzen_protocol::api::exchange::{
    ReserveClosing, ReserveCredit, ReserveHistoryItem, ReserveMerge, ReserveRecoup, ReserveStatus,
    ReserveWithdraw,
};
use batzen_protocol::signatures::{
    ExchangeConfirmRecoup, ExchangeReserveClosed, SignedMessage, WalletAccountMerge, WalletReserveWithdraw,
};
use batzen_protocol::{Amount, Money, Timestamp, payto};

use super::super::coin::CoinSource;
use super::super::exchange::Exchange;
use super::super::http::HttpResponse;
use super::super::purse::IncomeStage;
use super::super::recoup::RecoupStage;
use super::super::state::{Draft, OpKind};
use super::super::withdraw::{Origin, Withdrawal};
use super::{MAX_ITEMS, ProofCheck};
use crate::core::error::Result;

const PROOF: ProofCheck = ProofCheck { what: "the exchange's proof about a reserve" };

/// The request that the exchange refused.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Hashes of the blinded planchets.
    pub(crate) envelopes: BTreeSet<HashCode>,
    /// Sum of values and fees.
    pub(crate) amount: Money,
}

/// Content of a valid proof.
#[derive(Clone, Debug)]
pub(crate) struct ReserveProof {
    pub(crate) balance: Money,
    /// Sum of incoming transfers and recoups.
    pub(crate) received: Money,
    /// Envelopes that were already paid for.
    pub(crate) withdrawn: BTreeSet<HashCode>,
}

/// Verifies the answer 409/1150 to a withdrawal from `record`'s reserve.
///
/// # Errors
/// [`CoreError::FalseProof`] if the proof is invalid; [`CoreError::UnknownSigningKey`] if it is signed by an
/// unknown key.
pub(crate) fn verify(
    draft: &Draft<'_>,
    exchange: &Exchange,
    record: &Withdrawal,
    asked: &Asked,
    response: &HttpResponse,
    now: Timestamp,
) -> Result<ReserveProof> {
    let answer: InsufficientReserve = PROOF.parse(response)?;
    PROOF.check_count(answer.history.len())?;
    let requested = exchange.amount(asked.amount);
    PROOF.check(answer.requested_amount == requested, "it is about another amount than the one asked for")?;
    let mut ledger = Ledger {
        exchange,
        reserve_pub: record.reserve_pub,
        asked,
        now,
        transfers: BTreeMap::new(),
        merges: BTreeMap::new(),
        recoups: BTreeSet::new(),
        closings: BTreeSet::new(),
        withdrawn: BTreeSet::new(),
        received: Money::ZERO,
        taken: Money::ZERO,
    };
    for item in &answer.history {
        ledger.enter(item)?;
    }
    if matches!(record.origin, Origin::Bank(_)) {
        let listed = Money::checked_sum(ledger.transfers.values().copied())?;
        PROOF.check(listed >= record.amount, "it leaves out money that the bank says it has transferred")?;
    }
    for (coin_pub, confirmed) in confirmed_recoups(draft, &record.reserve_pub)? {
        let listed = ledger.recoups.iter().filter(|(other, ..)| *other == coin_pub);
        let listed = Money::checked_sum(listed.map(|(.., money)| *money))?;
        PROOF.check(listed >= confirmed, "it leaves out a recoup that the exchange confirmed")?;
    }
    for purse_pub in received_purses(draft, &record.reserve_pub) {
        let is_listed = ledger.merges.get(&purse_pub) == Some(&true);
        PROOF.check(is_listed, "it leaves out a payment that the exchange confirmed")?;
    }
    let balance = ledger
        .received
        .checked_sub(ledger.taken)
        .map_err(|_| PROOF.false_proof("it takes more from the reserve than came in"))?;
    let stated = PROOF.amount(exchange, &answer.balance)?;
    PROOF.check(balance == stated, "its balance is not the sum of its history")?;
    PROOF.check(balance < asked.amount, "by its own figures the reserve holds enough")?;
    Ok(ReserveProof { balance, received: ledger.received, withdrawn: ledger.withdrawn })
}

/// The purses that paid into a reserve, as the exchange has confirmed.
fn received_purses(draft: &Draft<'_>, reserve: &EddsaPublicKey) -> Vec<EddsaPublicKey> {
    let purses = draft.operations().filter_map(|operation| match &operation.kind {
        OpKind::PurseIncome(income)
            if income.stage == IncomeStage::Done && income.reserve_priv.public_key() == *reserve =>
        {
            Some(income.purse_pub)
        }
        _ => None,
    });
    purses.collect()
}

/// Confirmed recoups into a reserve, by coin.
pub(crate) fn confirmed_recoups(
    draft: &Draft<'_>,
    reserve: &EddsaPublicKey,
) -> Result<BTreeMap<EddsaPublicKey, Money>> {
    let mut sums: BTreeMap<EddsaPublicKey, Money> = BTreeMap::new();
    for operation in draft.operations() {
        let OpKind::Recoup(recoup) = &operation.kind else { continue };
        let source = draft.coin(&recoup.coin_pub)?.source;
        let into_reserve =
            matches!(source, CoinSource::Withdrawal { reserve_pub, .. } if reserve_pub == *reserve);
        if recoup.stage == RecoupStage::Done && into_reserve {
            let sum = sums.entry(recoup.coin_pub).or_default();
            *sum = sum.checked_add(recoup.amount)?;
        }
    }
    Ok(sums)
}

/// The amount that a reserve's recent history says was recouped into it from a coin, signed by the exchange.
///
/// # Errors
/// As [`verify`].
pub(crate) fn returned(
    exchange: &Exchange,
    reserve_pub: &EddsaPublicKey,
    coin_pub: &EddsaPublicKey,
    response: &HttpResponse,
    now: Timestamp,
) -> Result<Money> {
    let proof_check = ProofCheck { what: "the exchange's history of a reserve" };
    let answer: ReserveStatus = proof_check.parse(response)?;
    proof_check.check(answer.history.len() <= MAX_ITEMS, "it is longer than any honest one")?;
    let mut listed = BTreeMap::new();
    for item in &answer.history {
        let ReserveHistoryItem::Recoup(item) = item else { continue };
        if item.coin_pub == *coin_pub {
            let money = check_recoup(proof_check, exchange, reserve_pub, item, now)?;
            listed.insert((item.timestamp, money), money);
        }
    }
    Ok(Money::checked_sum(listed.into_values())?)
}

/// Checks the exchange's statement that it has recouped a coin into a reserve.
fn check_recoup(
    proof_check: ProofCheck,
    exchange: &Exchange,
    reserve_pub: &EddsaPublicKey,
    item: &ReserveRecoup,
    now: Timestamp,
) -> Result<Money> {
    let money = proof_check.amount(exchange, &item.amount)?;
    let statement = ExchangeConfirmRecoup {
        timestamp: item.timestamp,
        recoup_amount: item.amount,
        coin_pub: item.coin_pub,
        reserve_pub: *reserve_pub,
    };
    let signature = (&item.exchange_pub, &item.exchange_sig);
    proof_check.check_exchange(exchange, &statement, signature, (item.timestamp, now))?;
    Ok(money)
}

/// Verifies a history, item by item.
struct Ledger<'a> {
    exchange: &'a Exchange,
    reserve_pub: EddsaPublicKey,
    asked: &'a Asked,
    now: Timestamp,
    /// Incoming transfers, by sender, row at the bank, and time.
    transfers: BTreeMap<(String, u64, Timestamp), Money>,
    /// Purses that were merged into the reserve, and whether they paid.
    merges: BTreeMap<EddsaPublicKey, bool>,
    recoups: BTreeSet<(EddsaPublicKey, Timestamp, Money)>,
    closings: BTreeSet<([u8; 32], Timestamp)>,
    withdrawn: BTreeSet<HashCode>,
    received: Money,
    taken: Money,
}

impl Ledger<'_> {
    fn enter(&mut self, item: &ReserveHistoryItem) -> Result<()> {
        match item {
            ReserveHistoryItem::Credit(item) => self.credit(item),
            ReserveHistoryItem::Withdraw(item) => self.withdraw(item),
            ReserveHistoryItem::Recoup(item) => self.recoup(item),
            ReserveHistoryItem::Closing(item) => self.closing(item),
            ReserveHistoryItem::Merge(item) => self.merge(item),
            ReserveHistoryItem::History(_) | ReserveHistoryItem::Open(_) | ReserveHistoryItem::Close(_) => {
                Err(PROOF.false_proof("it lists a kind of operation that this wallet never makes"))
            }
        }
    }

    fn money(&self, amount: &Amount) -> Result<Money> {
        PROOF.amount(self.exchange, amount)
    }

    fn receive(&mut self, money: Money) -> Result<()> {
        self.received = self.received.checked_add(money)?;
        Ok(())
    }

    fn take(&mut self, money: Money) -> Result<()> {
        self.taken = self.taken.checked_add(money)?;
        Ok(())
    }

    fn credit(&mut self, item: &ReserveCredit) -> Result<()> {
        let money = self.money(&item.amount)?;
        let key = (item.sender_account_url.clone(), item.wire_reference, item.timestamp);
        PROOF.check(self.transfers.insert(key, money).is_none(), "it lists a transfer twice")?;
        self.receive(money)
    }

    fn merge(&mut self, item: &ReserveMerge) -> Result<()> {
        let money = self.money(&item.amount)?;
        let fee = self.money(&item.purse_fee)?;
        let message = WalletAccountMerge {
            purse_expiration: item.purse_expiration,
            purse_amount: item.amount,
            purse_fee: item.purse_fee,
            h_contract_terms: item.h_contract_terms,
            purse_pub: item.purse_pub,
            merge_timestamp: item.merge_timestamp,
            min_age: item.min_age,
            flags: item.flags,
        };
        PROOF.check(
            message.verify(&self.reserve_pub, &item.reserve_sig),
            "it lists a merge that the reserve's key did not sign",
        )?;
        let is_new = self.merges.insert(item.purse_pub, item.merged).is_none();
        PROOF.check(is_new, "it lists a merge twice")?;
        if item.merged {
            self.receive(money)?;
        }
        self.take(fee)
    }

    fn withdraw(&mut self, item: &ReserveWithdraw) -> Result<()> {
        let money = self.money(&item.amount)?;
        if let Ok(denom) = self.exchange.denom(&item.h_denom_pub) {
            let cost = denom.value.checked_add(denom.fee_withdraw)?;
            let is_right = money == cost && item.withdraw_fee == self.exchange.amount(denom.fee_withdraw);
            PROOF.check(is_right, "an amount in it does not fit the terms of the denomination")?;
        }
        let message = WalletReserveWithdraw {
            amount_with_fee: item.amount,
            h_denom_pub: item.h_denom_pub,
            h_coin_envelope: item.h_coin_envelope,
        };
        PROOF.check(
            message.verify(&self.reserve_pub, &item.reserve_sig),
            "it lists a withdrawal that the reserve's key did not sign",
        )?;
        PROOF.check(
            !self.asked.envelopes.contains(&item.h_coin_envelope),
            "it counts the very withdrawal that it refuses",
        )?;
        PROOF.check(self.withdrawn.insert(item.h_coin_envelope), "it lists a withdrawal twice")?;
        self.take(money)
    }

    fn recoup(&mut self, item: &ReserveRecoup) -> Result<()> {
        let money = check_recoup(PROOF, self.exchange, &self.reserve_pub, item, self.now)?;
        let is_new = self.recoups.insert((item.coin_pub, item.timestamp, money));
        PROOF.check(is_new, "it lists a recoup twice")?;
        self.receive(money)
    }

    fn closing(&mut self, item: &ReserveClosing) -> Result<()> {
        let money = self.money(&item.amount)?;
        let fee = self.money(&item.closing_fee)?;
        PROOF.check(fee <= money, "it lists a closing fee above what was paid out")?;
        let statement = ExchangeReserveClosed {
            timestamp: item.timestamp,
            closing_amount: item.amount,
            closing_fee: item.closing_fee,
            reserve_pub: self.reserve_pub,
            h_payto: payto::h_payto(&item.receiver_account_details),
            wtid: item.wtid,
        };
        let signature = (&item.exchange_pub, &item.exchange_sig);
        PROOF.check_exchange(self.exchange, &statement, signature, (item.timestamp, self.now))?;
        let is_new = self.closings.insert((*item.wtid.as_bytes(), item.timestamp));
        PROOF.check(is_new, "it lists a closing twice")?;
        self.take(money)
    }
}
